"""What a window of the page shows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..core.conversation import Conversation, Turn
from ..store.history import Node, NoSuchChat


@dataclass(frozen=True, slots=True)
class View:
    """A branch of a stored conversation. `chat` is its id, None before the first prompt of a new one."""

    chat: int | None = None
    nodes: tuple[Node, ...] = ()

    @property
    def conversation(self) -> Conversation:
        return tuple(node.turn for node in self.nodes)

    @property
    def is_answering(self) -> bool:
        return bool(self.nodes) and not self.nodes[-1].turn.complete

    @property
    def tip(self) -> int | None:
        return self.nodes[-1].id if self.nodes else None

    def before(self, node: Node) -> View:
        """The view of the turns before one of `nodes`."""
        return View(self.chat, self.nodes[: self.nodes.index(node)])

    def before_edited(self, node: int | None) -> View:
        """The view of the turns before the one whose prompt is edited; all of it if that turn is not shown."""
        edited = next((shown for shown in self.nodes if shown.id == node), None)
        return self if edited is None else self.before(edited)

    def find(self, node: int) -> Node:
        """The shown turn with this id. Raises NoSuchChat."""
        for shown in self.nodes:
            if shown.id == node:
                return shown
        raise NoSuchChat("This part of the conversation is no longer shown: open it again.")

    def with_last(self, turn: Turn) -> View:
        return replace(self, nodes=(*self.nodes[:-1], replace(self.nodes[-1], turn=turn)))
