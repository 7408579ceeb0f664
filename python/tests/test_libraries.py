"""pandas, zarr and xarray over file systems in pools."""

import pytest

np = pytest.importorskip("numpy")


def test_pandas(fs):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"n": range(10_000), "x": np.linspace(0, 1, 10_000)})
    frame.to_csv(f"{fs.url}/frame.csv", index=False, storage_options=fs.options)
    back = pandas.read_csv(f"{fs.url}/frame.csv", storage_options=fs.options)
    pandas.testing.assert_frame_equal(frame, back)


def test_zarr(fs):
    zarr = pytest.importorskip("zarr", minversion="3")
    data = np.random.default_rng(1).random((512, 1024), dtype="f4")
    made = zarr.create_array(
        f"{fs.url}/array.zarr", shape=data.shape, chunks=(64, 256), dtype="f4", storage_options=fs.options
    )
    made[:] = data
    back = zarr.open_array(f"{fs.url}/array.zarr", mode="r", storage_options=fs.options)
    assert np.array_equal(back[:], data)
    assert np.array_equal(back[100:200, 300:301], data[100:200, 300:301])
    group = zarr.open_group(f"{fs.url}/group.zarr", mode="w", storage_options=fs.options)
    group.create_array("below", data=data)
    assert list(zarr.open_group(f"{fs.url}/group.zarr", mode="r", storage_options=fs.options)) == ["below"]
    zarr.open_group(f"{fs.url}/group.zarr", mode="w", storage_options=fs.options)
    assert not fs.fs.exists(f"{fs.top}/group.zarr/below")


def test_xarray(fs):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr", minversion="3")
    data = xarray.Dataset(
        {"t": (("time", "x"), np.arange(6000.0).reshape(60, 100))}, coords={"time": np.arange(60)}
    )
    data.to_zarr(f"{fs.url}/set.zarr", storage_options=fs.options, consolidated=False)
    back = xarray.open_zarr(f"{fs.url}/set.zarr", storage_options=fs.options, consolidated=False, chunks=None)
    xarray.testing.assert_equal(data, back.load())
