"""Whitened features and the looks of words, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from vgtools.analysis.looks import photos_of_words, shrinkage, whiten, word_looks


@pytest.mark.parametrize("shape", [(12, 5), (5, 12)])
def test_the_shrinkage_is_that_of_the_definition(shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal(shape) * np.arange(1, shape[1] + 1)
    x -= x.mean(0)
    count, width = shape
    covariance = x.T @ x / count
    mean = np.trace(covariance) / width
    apart = ((covariance - mean * np.eye(width)) ** 2).sum() / width
    scatter = sum(((np.outer(row, row) - covariance) ** 2).sum() / width for row in x) / count**2
    expected = min(scatter, apart) / apart
    assert shrinkage(x) == pytest.approx(expected)
    assert 0 < expected < 1


def test_white_features_have_the_inverse_of_the_shrunk_covariance_in_their_products() -> None:
    generator = np.random.default_rng(1)
    x = generator.standard_normal((40, 6)) @ np.diag([9, 3, 1, 1, 0.3, 0.1]) + 5
    white, weight = whiten(x)
    centred = x - x.mean(0)
    covariance = centred.T @ centred / 40
    shrunk = (1 - weight) * covariance + weight * np.trace(covariance) / 6 * np.eye(6)
    assert white @ white.T == pytest.approx(centred @ np.linalg.inv(shrunk) @ centred.T)
    assert white.mean(0) == pytest.approx(np.zeros(6), abs=1e-12)


def test_features_that_do_not_vary_become_zeros() -> None:
    white, weight = whiten(np.full((4, 3), 2.5))
    assert white.tolist() == np.zeros((4, 3)).tolist()
    assert weight == 1


def test_looks_are_means_over_the_photos_of_a_word() -> None:
    features = np.array([[1.0, 0], [3, 2], [5, 7]])
    words = [["dog", "dog", "red"], ["dog"], ["red", "car"]]
    photos = photos_of_words(words, 2)
    assert {word: rows.tolist() for word, rows in photos.items()} == {"dog": [0, 1], "red": [0, 2]}
    assert word_looks(features, photos.values()).tolist() == [[2, 1], [3, 3.5]]
    assert list(photos_of_words(words, 1)) == ["car", "dog", "red"]
