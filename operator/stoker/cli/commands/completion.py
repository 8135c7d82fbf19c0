"""`stoker completion`."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL; job names are completed from the server.

    \b
    bash:  stoker completion bash > ~/.local/share/bash-completion/completions/stoker
    zsh:   stoker completion zsh  > a folder of $fpath, as _stoker
    fish:  stoker completion fish > ~/.config/fish/completions/stoker.fish
    """
    from click.shell_completion import get_completion_class

    from stoker.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(cli, {}, "stoker", "_STOKER_COMPLETE")
    # Not `made.source()`: bash's runs bash to ask for its version, which fails where only the script is wanted.
    click.echo(made.source_template % made.source_vars())
