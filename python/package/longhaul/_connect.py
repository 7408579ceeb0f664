"""Options of connections to targets, which several functions take."""

import os
from typing import Any, Dict, Optional, Union


def connect(
    keys: Optional[Union[str, "os.PathLike[str]"]] = None,
    hostnqn: Optional[str] = None,
    tls: bool = False,
    connect_timeout: Optional[float] = None,
    ctrl_loss_timeout: Optional[float] = None,
    congestion: Optional[str] = None,
) -> Dict[str, Any]:
    """The options as the native part takes them."""
    return {
        "keys": None if keys is None else os.fspath(keys),
        "hostnqn": hostnqn,
        "tls": tls,
        "connect_timeout": connect_timeout,
        "ctrl_loss_timeout": ctrl_loss_timeout,
        "congestion": congestion,
    }
