"""Who touched which bytes of shared and tensor memory: races, unfenced reads, reads of unwritten memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np

from kernels.simulator.clocks import Actor, Event
from kernels.simulator.errors import Findings


class Region:
    """The 4-byte words of one distinct view, and the last accesses to them."""

    __slots__ = ("generic", "initialised", "key", "overlaps", "reads", "who", "words", "write")

    def __init__(self, key: Hashable, words: np.ndarray):
        self.key, self.words = key, words  # words: sorted, unique
        self.write: Event | None = None
        self.who = ""
        self.generic = False  # the last write went through the generic proxy
        self.reads: dict[int, tuple[Event, str]] = {}
        self.overlaps: list[tuple[Region, bool]] = [(self, True)]  # (other, is the other wholly inside?)
        self.initialised = False


class Shadow:
    """The regions of one CTA's shared or tensor memory. Overlaps between regions are exact to 4-byte words."""

    def __init__(self, name: str, words: int, findings: Findings):
        self.name, self.findings = name, findings
        self._regions: dict[Hashable, Region] = {}
        self._written = np.zeros(words, bool)

    def region(self, key: Hashable, words: Callable[[], np.ndarray]) -> Region:
        """The region of this key, made on first use."""
        region = self._regions.get(key)
        if region is not None:
            return region
        region = Region(key, words())
        for other in self._regions.values():
            if other.words[0] <= region.words[-1] and region.words[0] <= other.words[-1]:
                common = len(np.intersect1d(other.words, region.words, assume_unique=True))
                if common:
                    other.overlaps.append((region, common == len(region.words)))
                    region.overlaps.append((other, common == len(other.words)))
        self._regions[key] = region
        return region

    def read(self, region: Region, who: Actor, proxy: str) -> None:
        """``who`` reads the region through the ``generic`` or the ``async`` proxy."""
        if not region.initialised:
            region.initialised = bool(self._written[region.words].all())
            if not region.initialised:
                self.findings.report("uninitialised", f"{who.label()} reads {self._name(region)} before all of it was "
                                                      "written")
        for other, _ in region.overlaps:
            if other.write is None:
                continue
            if not who.after(other.write):
                self.findings.report("race", f"{who.label()} reads {self._name(region)}, unordered with the write by "
                                              f"{other.who} to {self._name(other)}")
            if proxy == "async" and other.generic and not who.proxied(other.write):
                self.findings.report("proxy fence", f"{who.label()} reads {self._name(region)} through the async "
                                                    f"proxy; {other.who} wrote it without fence('async_shared')")
        region.reads[who.event[0]] = (who.event, who.label())

    def write(self, region: Region, who: Actor, proxy: str) -> None:
        """``who`` writes the region; everything it overlaps must come before."""
        for other, inside in region.overlaps:
            if other.write is not None and not who.after(other.write):
                self.findings.report("race", f"{who.label()} writes {self._name(region)}, unordered with the write by "
                                              f"{other.who} to {self._name(other)}")
            for event, label in other.reads.values():
                if event != who.event and not who.after(event):
                    self.findings.report("race", f"{who.label()} writes {self._name(region)}, unordered with the read "
                                                  f"by {label} of {self._name(other)}")
            if inside:
                other.write, other.reads, other.generic = None, {}, False
        region.write, region.who, region.reads = who.event, who.label(), {}
        region.generic = proxy == "generic" and self.name == "smem"
        if not region.initialised:
            self._written[region.words] = True
            region.initialised = True

    def _name(self, region: Region) -> str:
        return f"{self.name}{region.key}"
