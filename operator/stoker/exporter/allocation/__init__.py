"""Who holds which GPU of this node: asked of the kubelet, read from the node agent's folders, or nobody knows.

Each way is an `owners.Allocations`: one `read()`, called on a thread of its own, which never raises. What can't be told
has a reason (`reasons`); docs/allocation.md says what to do about each. Never on the polling path, never decides how
time and energy are counted: that is `meters/`.

    kubelet.py       PodResources → pods and device names → holdings; podresources.py reads the bytes, asking.py calls
    devices.py       device names → uuids; sharing.py several owners of one device
    jobs.py          pod → Stoker's job, asked of the api (owners_route.py)
    folders.py       one machine: the workers' folders
    nobody.py        no allocation: what is held is not known
"""
