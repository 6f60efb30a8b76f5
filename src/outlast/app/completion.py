"""`outlast completion SHELL`: a script that completes commands, options and their choices.

    outlast completion bash > ~/.local/share/bash-completion/completions/outlast
    outlast completion zsh > ~/.outlast.zsh              # and `source ~/.outlast.zsh` in ~/.zshrc

The words come from the parsers of the commands. Those of `run` are torchrun's, so making the script
imports torch; using it starts no program. Print it again after an upgrade. Runs under runs/ are
completed where a command takes a RUN, and files everywhere else.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from outlast.app.command_line import Parser
from outlast.errors import UsageError
from outlast.runtime.agent.zygote_client import ZygoteClient

SHELLS = ("bash", "zsh")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*(?![\w-])")
_CHOICE = re.compile(r"(--[a-z][a-z0-9-]*) \{([^}\s]+)\}")

_SCRIPT = """\
# Completes the command `outlast` in {shell}. Made by `outlast completion {shell}`.
{begin}
_outlast() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" prev="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="${{COMP_WORDS[1]}}" words=""
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    else
        case "$command $prev" in
{choices}
        esac
        case "$command" in
{inner}
        esac
        if [ -z "$words" ]; then
            case "$cur" in
                -*) case "$command" in
{options}
                    esac ;;
                *) case "$command" in
                    {takes_run}) words="$(ls -1 runs 2>/dev/null)" ;;
                    esac ;;
            esac
        fi
    fi
    [ -n "$words" ] && COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o bashdefault -o default -F _outlast outlast
"""
_BEGIN = {
    "bash": "",
    "zsh": "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }\n"
    "autoload -Uz bashcompinit && bashcompinit\n",
}
_TAKES_RUN = ("status", "report", "stop", "top", "serve", "diagnose")


@dataclass(slots=True)
class CommandWords:
    """Hold what can follow one command.

    choices   the values of an option, by its name
    inner     the commands inside this one, such as `export` of `ckpt`
    """

    options: set[str] = field(default_factory=set)
    choices: dict[str, list[str]] = field(default_factory=dict)
    inner: set[str] = field(default_factory=set)


def main(argv: Sequence[str]) -> int:
    args = parser().parse_args(list(argv))
    print(script(args.shell, words_of_all()), end="")
    sys.stdout.flush()
    return 0


def parser() -> Parser:
    out = Parser(
        prog="outlast completion",
        description="Print a script that lets a shell complete the commands of outlast.",
        epilog=(
            "bash: outlast completion bash > ~/.local/share/bash-completion/completions/outlast\n"
            "zsh:  outlast completion zsh > ~/.outlast.zsh, and `source ~/.outlast.zsh` in ~/.zshrc"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    out.add_argument("shell", choices=SHELLS, help="the shell that the script is for")
    return out


def words_of_all() -> dict[str, CommandWords]:
    """Return what can follow each command of `outlast`."""
    commands = importlib.import_module("outlast.app.cli").COMMANDS
    found = {}
    for name, command in commands.items():
        if name == "run":
            found[name] = words_of_help(_help_of_run())
            continue
        module = importlib.import_module(command.module)
        takes_name = command.function != "main"  # one parser for `status` and `report`
        found[name] = words_of(module.parser(name) if takes_name else module.parser())
    return found


def words_of(parser: argparse.ArgumentParser) -> CommandWords:
    """Return the words of a parser, with those of the commands inside it."""
    words = CommandWords()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                words.inner.add(name)
                words.options |= words_of(inner).options
        elif action.help != argparse.SUPPRESS:
            names = [name for name in action.option_strings if name.startswith("--")]
            words.options.update(names)
            if action.choices is not None:
                words.choices |= {name: list(map(str, action.choices)) for name in names}
                if not action.option_strings:
                    words.inner |= set(map(str, action.choices))
    return words


def words_of_help(text: str) -> CommandWords:
    """Return the words in the text of --help, where the parser is in another process.

    An option's line names it first, and its help after two spaces.
    """
    words = CommandWords()
    for line in map(str.strip, text.splitlines()):
        if line.startswith("-"):
            named = line.partition("  ")[0]
            words.options.update(_OPTION.findall(named))
            words.choices |= {name: given.split(",") for name, given in _CHOICE.findall(named)}
    return words


def script(shell: str, words: Mapping[str, CommandWords]) -> str:
    """Return the script for a shell."""
    return _SCRIPT.format(
        shell=shell,
        begin=_BEGIN[shell],
        commands=" ".join(words),
        choices="\n".join(_choices(words)),
        inner="\n".join(
            f'            {name}) [ "$COMP_CWORD" -eq 2 ] && words="{_joined(one.inner)}" ;;'
            for name, one in words.items()
            if one.inner
        ),
        options="\n".join(
            f'                    {name}) words="{_joined(one.options)}" ;;'
            for name, one in words.items()
        ),
        takes_run="|".join(_TAKES_RUN),
    )


def _choices(words: Mapping[str, CommandWords]) -> Iterator[str]:
    for name, one in words.items():
        for option, choices in sorted(one.choices.items()):
            yield f'            "{name} {option}") words="{" ".join(choices)}" ;;'


def _joined(words: set[str]) -> str:
    return " ".join(sorted(words))


def _help_of_run() -> str:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "1000"  # so that no name is broken over two lines
    try:
        zygote = ZygoteClient.start()
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
    try:
        answer = zygote.parse(["--help"])
    finally:
        zygote.kill()
    if "help" not in answer:
        raise UsageError(
            "the options of `outlast run` cannot be read", hint="pip install 'outlast[torch]'"
        )
    return str(answer["help"])
