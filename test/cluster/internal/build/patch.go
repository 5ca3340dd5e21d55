package build

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// patch copies a group's module, replaces files in the copy, and returns a
// go.mod that builds with it, and what removes the copy. Groups that replace
// nothing have no such go.mod.
func (c *Cache) patch(ctx context.Context, group Group) (modfile string, remove func(), err error) {
	if len(group.Replace) == 0 {
		return "", func() {}, nil
	}
	dir, err := os.MkdirTemp("", "mica-patch")
	if err != nil {
		return "", nil, fmt.Errorf("making a copy of %s: %w", group.Module, err)
	}
	remove = func() { os.RemoveAll(dir) }
	modfile, err = c.copyPatched(ctx, group, dir)
	if err != nil {
		remove()
		return "", nil, err
	}
	return modfile, remove, nil
}

func (c *Cache) copyPatched(ctx context.Context, group Group, dir string) (string, error) {
	module, err := c.moduleDir(ctx, group)
	if err != nil {
		return "", err
	}
	sources := filepath.Join(dir, "sources")
	if err := os.CopyFS(sources, os.DirFS(module)); err != nil {
		return "", fmt.Errorf("copying the sources of %s: %w", group.Module, err)
	}
	for file, stand := range group.Replace {
		if err := replaceFile(filepath.Join(sources, file), filepath.Join(c.Source, stand)); err != nil {
			return "", fmt.Errorf("replacing a file of %s: %w", group.Module, err)
		}
	}
	modfile := filepath.Join(dir, "go.mod")
	requirements, err := os.ReadFile(filepath.Join(group.Dir(c.Source), "go.mod"))
	if err != nil {
		return "", fmt.Errorf("reading the requirements of %s: %w", group.Name, err)
	}
	requirements = fmt.Appendf(requirements, "\nreplace %s => %s\n", group.Module, sources)
	if err := os.WriteFile(modfile, requirements, 0o644); err != nil {
		return "", fmt.Errorf("writing the requirements of a patched %s: %w", group.Module, err)
	}
	return modfile, replaceFile(filepath.Join(dir, "go.sum"), filepath.Join(group.Dir(c.Source), "go.sum"))
}

// moduleDir is where the group's module lies in the module cache, fetched if
// need be.
func (c *Cache) moduleDir(ctx context.Context, group Group) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", group.Module)
	cmd.Dir, cmd.Stderr = group.Dir(c.Source), c.Progress
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("fetching the sources of %s: %w", group.Module, err)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return "", fmt.Errorf("reading where the sources of %s lie: %w", group.Module, err)
	}
	return module.Dir, nil
}

// replaceFile makes the file at path the same as another.
func replaceFile(path, with string) error {
	data, err := os.ReadFile(with)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}
