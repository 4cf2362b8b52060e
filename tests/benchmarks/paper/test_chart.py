"""The chart of the edge; that the committed one is that of the evidence, tests of the quote tool hold."""

from xml.etree import ElementTree

from benchmarks.paper.chart import chart

SVG = "{http://www.w3.org/2000/svg}"


def test_every_arm_is_a_line_and_the_longer_interval_is_dashed():
    crashed = {"plain": [0, 1, 4], "fan-out, T = 5": [0, 0, 4], "fan-out, T = 100": [1, 2, 4]}
    told = {"rates": [0.1, 0.2, 0.4], "crashed": crashed, "seeds": 4}
    drawing = ElementTree.fromstring(chart({"edge": {"digits": told, "kuairand": told, "cells": []}}))
    lines = list(drawing.iter(f"{SVG}polyline"))
    assert len(lines) == 6
    assert ["stroke-dasharray" in line.attrib for line in lines] == [False, False, True] * 2
    plain = [tuple(map(float, point.split(","))) for point in lines[0].attrib["points"].split()]
    (x0, y0), (x1, y1), (x2, y2) = plain
    assert abs((x1 - x0) - (x2 - x1)) < 0.2, "rates are apart as their logarithms"
    assert y0 > y1 > y2
    said = [text.text for text in drawing.iter(f"{SVG}text")]
    assert {"digits, SGD", "KuaiRand, Adam", "— T = 5", "- - T = 100", "plain", "fan-out"} <= set(said)
