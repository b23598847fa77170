"""Help texts with examples."""

from rich.markup import escape


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"[cyan]{escape(line)}[/cyan]" for line in lines)])
