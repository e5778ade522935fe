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


class StoryItem(NamedTuple):
    """A story with its question, and the answer."""

    text: str
    answer: str
    kind: str
    visits: frozenset[Combination]  # who was where


@dataclass
class World:
    """What a story has told so far."""

    rng: random.Random
    people: Sequence[str] = PEOPLE
    banned: Collection[Combination] = ()
    sentences: list[str] = field(default_factory=list)
    rooms_visited: dict[str, list[str]] = field(default_factory=dict)  # the rooms of each person, the last one now
    held_things: dict[str, list[str]] = field(
        default_factory=dict
    )  # the things of each person, in the order of taking them
    left_things: dict[str, str] = field(default_factory=dict)  # the room of each thing that was left somewhere

    def room_of(self, person: str) -> str:
        """The room that a person is in."""
        return self.rooms_visited[person][-1]

    def holder_of(self, thing: str) -> str | None:
        """The person who holds a thing, if anybody does."""
        return next((person for person, things in self.held_things.items() if thing in things), None)

    def touched_things(self) -> list[str]:
        """The things that somebody has taken at some time, held or left."""
        return [thing for thing in THINGS if thing in self.left_things or self.holder_of(thing)]

    # -- what can happen ---------------------------------------------------------------------------------------------

    def move_person(self) -> None:
        """Move a random person to another room that is not banned for them, and add the sentence."""
        here = {person: rooms[-1] for person, rooms in self.rooms_visited.items()}
        options = [
            (person, room)
            for person in self.people
            for room in ROOMS
            if here.get(person) != room and (person, room) not in self.banned
        ]
        person, room = self.rng.choice(options)
        self.rooms_visited.setdefault(person, []).append(room)
        self.held_things.setdefault(person, [])
        self.sentences.append(f"{person} {self.rng.choice(WENT)} the {room}.")

    def take_thing(self) -> None:
        """Let a random person take a thing in their room or one not yet touched, and add the sentence, if possible."""
        options = [
            (person, thing)
            for person in self.rooms_visited
            for thing in THINGS
            if self.holder_of(thing) is None
            and self.left_things.get(thing, self.room_of(person)) == self.room_of(person)
        ]
        if options:
            person, thing = self.rng.choice(options)
            self.held_things[person].append(thing)
            self.left_things.pop(thing, None)
            self.sentences.append(f"{person} {self.rng.choice(TOOK)} the {thing}.")

    def leave_thing(self) -> None:
        """Let a random person put down a thing that they hold, and add the sentence, if possible."""
        options = [(person, thing) for person, things in self.held_things.items() for thing in things]
        if options:
            person, thing = self.rng.choice(options)
            self.held_things[person].remove(thing)
            self.left_things[thing] = self.room_of(person)
            self.sentences.append(f"{person} {self.rng.choice(LEFT)} the {thing}.")

    def give_thing(self) -> None:
        """Let a random person give a thing to another person in the room, and add the sentence, if possible."""
        options = [
            (person, thing, other)
            for person, things in self.held_things.items()
            for thing in things
            for other in self.rooms_visited
            if other != person and self.room_of(other) == self.room_of(person)
        ]
        if options:
            person, thing, other = self.rng.choice(options)
            self.held_things[person].remove(thing)
            self.held_things[other].append(thing)
            self.sentences.append(f"{person} gave the {thing} to {other}.")

    # -- what can be asked: a question and its answer, or None where it has none --------------------------------------

    def ask_where_person(self) -> tuple[str, str] | None:
        """Ask for the room of a random person: (question, answer)."""
        person = self.rng.choice([*self.rooms_visited])
        return f"Where is {person}?", self.room_of(person)

    def ask_where_thing(self) -> tuple[str, str] | None:
        """Ask for the room of a random thing that was taken: (question, answer); None if there is none."""
        if not self.touched_things():
            return None
        thing = self.rng.choice(self.touched_things())
        holder = self.holder_of(thing)
        return f"Where is the {thing}?", self.left_things[thing] if holder is None else self.room_of(holder)

    def ask_who(self) -> tuple[str, str] | None:
        """Ask who holds a random thing that was taken: (question, name or "nobody"); None if there is none."""
        if not self.touched_things():
            return None
        thing = self.rng.choice(self.touched_things())
        return f"Who has the {thing}?", self.holder_of(thing) or "nobody"

    def ask_what(self) -> tuple[str, str] | None:
        """Ask what a random person holds: (question, the things or "nothing")."""
        person = self.rng.choice([*self.rooms_visited])
        return f"What does {person} have?", " and ".join(
            f"the {thing}" for thing in self.held_things[person]
        ) or "nothing"

    def ask_whether(self) -> tuple[str, str] | None:
        """Ask whether a random person is in a room: (question, yes or no), each in half of the cases."""
        person = self.rng.choice([*self.rooms_visited])
        others = [room for room in ROOMS if room != self.room_of(person) and (person, room) not in self.banned]
        room = self.room_of(person) if self.rng.random() < 0.5 else self.rng.choice(others)
        return f"Is {person} in the {room}?", "yes" if room == self.room_of(person) else "no"

    def ask_how_many(self) -> tuple[str, str] | None:
        """Ask how many people are in a room that someone has visited: (question, number word)."""
        room = self.rng.choice([room for rooms in self.rooms_visited.values() for room in rooms])
        return f"How many people are in the {room}?", NUMBERS[
            sum(self.room_of(person) == room for person in self.rooms_visited)
        ]

    def ask_before(self) -> tuple[str, str] | None:
        """Ask where a person was before the room that they entered for the first time; None if nobody did."""
        known = [
            person for person, rooms in self.rooms_visited.items() if len(rooms) > 1 and rooms[-1] not in rooms[:-1]
        ]
        if not known:
            return None
        person = self.rng.choice(known)
        return f"Where was {person} before the {self.room_of(person)}?", self.rooms_visited[person][-2]


QUESTIONS: dict[str, Callable[[World], tuple[str, str] | None]] = {
    "where-person": World.ask_where_person,
    "where-thing": World.ask_where_thing,
    "who": World.ask_who,
    "what": World.ask_what,
    "whether": World.ask_whether,
    "how-many": World.ask_how_many,
    "before": World.ask_before,
}
EVENTS = (World.move_person, World.move_person, World.take_thing, World.take_thing, World.leave_thing, World.give_thing)


def generate_item(rng: random.Random, banned: Collection[Combination] = ()) -> StoryItem:
    """A story of 4 to 12 events among 2 to 5 people, and a question of a kind that it can answer."""
    world, length = World(rng, rng.sample(PEOPLE, rng.randint(2, 5)), banned), rng.randint(4, 12)
    while len(world.sentences) < length:
        (rng.choice(EVENTS) if world.rooms_visited else World.move_person)(world)
    while True:
        kind = rng.choice([*QUESTIONS])
        if question := QUESTIONS[kind](world):
            visits = frozenset((person, room) for person, rooms in world.rooms_visited.items() for room in rooms)
            return StoryItem(" ".join([*world.sentences, question[0]]), question[1], kind, visits)


def generate_items(rng: random.Random, banned: Collection[Combination] = ()) -> Iterator[StoryItem]:
    """Yield random items forever."""
    while True:
        yield generate_item(rng, banned)
