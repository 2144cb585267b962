"""`node_passwords`: one folder with a file for each node, and nothing outside of it."""

from pathlib import Path

import pytest

from balancer.settings import ConfigurationError, NodeSettings, load_settings

pytestmark = pytest.mark.quick


def written(folder: Path, nodes: str, passwords: str = "passwords") -> Path:
    (folder / "passwords").mkdir(exist_ok=True)
    (folder / "bundles").mkdir(exist_ok=True)
    (folder / "bundles" / "shop.toml").write_text(nodes)
    file = folder / "balancer.toml"
    file.write_text(f'directory = "sqlite:///x.db"\nnode_passwords = "{passwords}"\n')
    return file


def node(name: str, more: str = "") -> str:
    return f'[nodes."{name}"]\ndsn = "postgresql://balancer@host/shop"\n{more}\n'


def password(found: NodeSettings) -> str | None:
    return found.password.get_secret_value() if found.password else None


def test_the_file_of_a_nodes_name_is_its_password(tmp_path: Path) -> None:
    file = written(tmp_path, node("pg-a") + node("pg.b") + node("without"))
    (tmp_path / "passwords" / "pg-a").write_text("hush-a\n")
    (tmp_path / "passwords" / "pg.b").write_text("hush-b")
    nodes = load_settings(file).bundle("shop").nodes
    assert {name: password(one) for name, one in nodes.items()} == {"pg-a": "hush-a", "pg.b": "hush-b", "without": None}
    assert "hush" not in repr(nodes)


def test_the_environment_and_the_nodes_own_file_go_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").write_text("own")
    file = written(tmp_path, node("a") + node("b", 'password_file = "../own"') + node("c"))
    for name in "abc":
        (tmp_path / "passwords" / name).write_text(f"folder-{name}")
    monkeypatch.setenv("BALANCER_PASSWORD_A", "outside")
    nodes = load_settings(file).bundle("shop").nodes
    assert [password(one) for one in nodes.values()] == ["outside", "own", "folder-c"]


@pytest.mark.parametrize("name", ["../secret", "a/b", "/etc/hostname", ".", "..", "..data", "", "a\\u0000b"])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    file = written(tmp_path, node(name))
    (tmp_path / "secret").write_text("hush")
    (tmp_path / "passwords" / "..data").mkdir()
    (tmp_path / "passwords" / "a").mkdir()
    (tmp_path / "passwords" / "a" / "b").write_text("hush")
    with pytest.raises(ConfigurationError, match="its file in node_passwords cannot") as refused:
        load_settings(file)
    assert "hush" not in str(refused.value)
    assert "\0" not in str(refused.value)


def test_what_is_no_password_is_said_and_not_repeated(tmp_path: Path) -> None:
    file = written(tmp_path, node("a") + node("b"))
    (tmp_path / "passwords" / "a").write_text("hush\nrush")
    (tmp_path / "passwords" / "b").mkdir()
    with pytest.raises(ConfigurationError) as refused:
        load_settings(file)
    assert "nodes.a: its file in node_passwords must contain the secret alone" in str(refused.value)
    assert "nodes.b: its file in node_passwords cannot be read: Is a directory" in str(refused.value)
    assert "hush" not in str(refused.value)


def test_a_folder_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="node_passwords: there is no folder"):
        load_settings(written(tmp_path, node("a"), "paswords"))
