from enum import Enum, Flag, IntEnum, auto


class State(Enum):
    NEW = auto()
    RUNNING = auto()
    DONE = auto()

    def next(self):
        members = list(State)
        return members[(members.index(self) + 1) % len(members)]


class Access(Flag):
    READ = 1
    WRITE = 2


class Level(IntEnum):
    LOW = 1
    HIGH = 2


print(State.NEW.next(), [state.name for state in State], Access.READ | Access.WRITE)
print(Level.HIGH > Level.LOW, State["DONE"], State("missing"))
