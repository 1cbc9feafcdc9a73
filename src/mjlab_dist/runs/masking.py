"""Find secrets, which must not appear in command lines and files. Imports the standard library only."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Shown in place of a secret
MASK = "***"

# Substrings in the names of secret variables. Only rank 0 can need these variables, and it runs on the machine where
# the command was started, so they are never sent to other machines.
SECRETS = ("KEY", "TOKEN", "SECRET", "PASS", "CRED", "AUTH")

# An address with a password or a token, such as https://user:password@host or https://token@host
LOGIN = re.compile(r"(://(?:[^/:@\s]*:)?)[^/\s]*@")

# Matches the last part of a secret flag's name, in lower case: for --db.password, this part is password
SECRET_FLAG = re.compile(r"(.*[-_])?(\w*key|\w*token|secrets?|pass(wd|word|phrase)?|cred(ential)?s?|auth)")


def masked(argv: Sequence[str]) -> list[str]:
    """Return a command line in which *** hides passwords in addresses, and values of secret flags and variables."""
    shown: list[str] = []
    is_secret = False
    for arg in argv:
        name, has_value, _ = arg.partition("=")
        if arg.startswith("--") or (has_value and name.isidentifier()):
            hides = SECRET_FLAG.fullmatch(name.lower().lstrip("-").rpartition(".")[2]) is not None
            is_secret = hides and not has_value
            shown.append(f"{name}={MASK}" if hides and has_value else LOGIN.sub(rf"\1{MASK}@", arg))
        else:
            shown.append(MASK if is_secret else LOGIN.sub(rf"\1{MASK}@", arg))
    return shown
