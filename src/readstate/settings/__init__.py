"""Settings: flags, then environment, then a TOML file, then defaults, checked once into one frozen object."""

from .checks import About as About
from .checks import Value as Value
from .checks import refuse as refuse
from .loading import load_settings as load_settings
from .loading import make_settings as make_settings
from .table import Row as Row
from .table import Settings as Settings
from .table import describe as describe
from .table import without_password as without_password
