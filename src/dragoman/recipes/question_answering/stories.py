"""Short stories about people who move between rooms and carry things, and questions that follow from them.

    Ada went to the kitchen. Ada took the lamp. Ben went to the attic. Where is the lamp?  →  kitchen

A story tells all there is to know: nobody is anywhere before the story says so, and a thing that was never touched is
never asked about. The kinds of questions:

    where-person   Where is Ada?                          where-thing    Where is the lamp?
    who            Who has the lamp?                      what           What does Ada have?
    whether        Is Ada in the kitchen?                 how-many       How many people are in the kitchen?
    before         Where was Ada before the kitchen?

Some combinations of a person and a room can be kept out of stories and questions, to be met in a test alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

PEOPLE = ("Ada", "Ben", "Chidi", "Dalia", "Emil", "Fatima", "Goro", "Hana")
ROOMS = ("kitchen", "attic", "garden", "library", "workshop", "cellar")
THINGS = ("lamp", "key", "basket", "letter", "clock", "violin")
NUMBERS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight")
WENT, TOOK, LEFT = ("went to", "walked to", "moved to"), ("took", "picked up"), ("left", "put down")

Combination = tuple[str, str]  # a person and a room


class Item(NamedTuple):
    """A story with its question, and the answer."""

    text: str
    answer: str
    kind: str
    met: frozenset[Combination]  # who was where


@dataclass
class World:
    """What a story has told so far."""

    rng: random.Random
    people: Sequence[str] = PEOPLE
    banned: Collection[Combination] = ()
    told: list[str] = field(default_factory=list)
    been: dict[str, list[str]] = field(default_factory=dict)  # the rooms of each person, the last one now
    has: dict[str, list[str]] = field(default_factory=dict)  # the things of each person, in the order of taking them
    lies: dict[str, str] = field(default_factory=dict)  # the room of each thing that was left somewhere

    def room(self, person: str) -> str:
        return self.been[person][-1]

    def holder(self, thing: str) -> str | None:
        return next((person for person, things in self.has.items() if thing in things), None)

    def touched(self) -> list[str]:
        return [thing for thing in THINGS if thing in self.lies or self.holder(thing)]

    # -- what can happen ---------------------------------------------------------------------------------------------

    def go(self) -> None:
        here = {person: rooms[-1] for person, rooms in self.been.items()}
        ways = [
            (person, room)
            for person in self.people
            for room in ROOMS
            if here.get(person) != room and (person, room) not in self.banned
        ]
        person, room = self.rng.choice(ways)
        self.been.setdefault(person, []).append(room)
        self.has.setdefault(person, [])
        self.told.append(f"{person} {self.rng.choice(WENT)} the {room}.")

    def take(self) -> None:
        """Someone takes a thing that lies in the same room, or that nobody has touched yet."""
        ways = [
            (person, thing)
            for person in self.been
            for thing in THINGS
            if self.holder(thing) is None and self.lies.get(thing, self.room(person)) == self.room(person)
        ]
        if ways:
            person, thing = self.rng.choice(ways)
            self.has[person].append(thing)
            self.lies.pop(thing, None)
            self.told.append(f"{person} {self.rng.choice(TOOK)} the {thing}.")

    def leave(self) -> None:
        ways = [(person, thing) for person, things in self.has.items() for thing in things]
        if ways:
            person, thing = self.rng.choice(ways)
            self.has[person].remove(thing)
            self.lies[thing] = self.room(person)
            self.told.append(f"{person} {self.rng.choice(LEFT)} the {thing}.")

    def give(self) -> None:
        ways = [
            (person, thing, other)
            for person, things in self.has.items()
            for thing in things
            for other in self.been
            if other != person and self.room(other) == self.room(person)
        ]
        if ways:
            person, thing, other = self.rng.choice(ways)
            self.has[person].remove(thing)
            self.has[other].append(thing)
            self.told.append(f"{person} gave the {thing} to {other}.")

    # -- what can be asked: a question and its answer, or None where it has none --------------------------------------

    def where_person(self) -> tuple[str, str] | None:
        person = self.rng.choice([*self.been])
        return f"Where is {person}?", self.room(person)

    def where_thing(self) -> tuple[str, str] | None:
        if not self.touched():
            return None
        thing = self.rng.choice(self.touched())
        holder = self.holder(thing)
        return f"Where is the {thing}?", self.lies[thing] if holder is None else self.room(holder)

    def who(self) -> tuple[str, str] | None:
        if not self.touched():
            return None
        thing = self.rng.choice(self.touched())
        return f"Who has the {thing}?", self.holder(thing) or "nobody"

    def what(self) -> tuple[str, str] | None:
        person = self.rng.choice([*self.been])
        return f"What does {person} have?", " and ".join(f"the {thing}" for thing in self.has[person]) or "nothing"

    def whether(self) -> tuple[str, str] | None:
        """As often yes as no."""
        person = self.rng.choice([*self.been])
        others = [room for room in ROOMS if room != self.room(person) and (person, room) not in self.banned]
        room = self.room(person) if self.rng.random() < 0.5 else self.rng.choice(others)
        return f"Is {person} in the {room}?", "yes" if room == self.room(person) else "no"

    def how_many(self) -> tuple[str, str] | None:
        """Of a room that someone is in, or was."""
        room = self.rng.choice([room for rooms in self.been.values() for room in rooms])
        return f"How many people are in the {room}?", NUMBERS[sum(self.room(person) == room for person in self.been)]

    def before(self) -> tuple[str, str] | None:
        """Of someone who came to a room for the first time, from another one."""
        known = [person for person, rooms in self.been.items() if len(rooms) > 1 and rooms[-1] not in rooms[:-1]]
        if not known:
            return None
        person = self.rng.choice(known)
        return f"Where was {person} before the {self.room(person)}?", self.been[person][-2]


ASK: dict[str, Callable[[World], tuple[str, str] | None]] = {
    "where-person": World.where_person,
    "where-thing": World.where_thing,
    "who": World.who,
    "what": World.what,
    "whether": World.whether,
    "how-many": World.how_many,
    "before": World.before,
}
HAPPENS = (World.go, World.go, World.take, World.take, World.leave, World.give)


def item(rng: random.Random, banned: Collection[Combination] = ()) -> Item:
    """A story of 4 to 12 events among 2 to 5 people, and a question of a kind that it can answer."""
    world, length = World(rng, rng.sample(PEOPLE, rng.randint(2, 5)), banned), rng.randint(4, 12)
    while len(world.told) < length:
        (rng.choice(HAPPENS) if world.been else World.go)(world)
    while True:
        kind = rng.choice([*ASK])
        if asked := ASK[kind](world):
            met = frozenset((person, room) for person, rooms in world.been.items() for room in rooms)
            return Item(" ".join([*world.told, asked[0]]), asked[1], kind, met)


def items(rng: random.Random, banned: Collection[Combination] = ()) -> Iterator[Item]:
    while True:
        yield item(rng, banned)
