/* The form that asks for the server's key; every page has one with these ids. */

import { keepKey } from "./server.js";

const at = (id) => document.getElementById(id);

/** `why` is said from the second time on: the first time, the heading says it all. */
export function askForKey(why) {
  at("key").hidden = false;
  at("key-why").textContent = at("key-text").value && why;
  at("key-text").focus();
}

/** `start` begins anew with the key that was typed. */
export function listenForKey(start) {
  at("key").addEventListener("submit", (event) => {
    event.preventDefault();
    keepKey(at("key-text").value);
    at("key").hidden = true;
    start();
  });
}
