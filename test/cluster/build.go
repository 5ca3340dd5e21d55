package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/mica-gpu/mica/test/cluster/internal/build"
)

func newBuildCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "build [NAME...]",
		Short: "Build what the cluster runs into the cache; all of it, or the named groups and binaries",
		RunE: func(cmd *cobra.Command, names []string) error {
			cache, err := newCache(cmd.OutOrStdout())
			if err != nil {
				return err
			}
			groups := build.Groups()
			if len(names) == 0 {
				for _, group := range groups {
					names = append(names, group.Name)
				}
			}
			for _, name := range names {
				dir, built, err := buildOne(cmd, cache, groups, name)
				if err != nil {
					return err
				}
				for _, binary := range built {
					fmt.Fprintln(cmd.OutOrStdout(), filepath.Join(dir, binary))
				}
			}
			return nil
		},
	}
}

// buildOne builds a whole group when name is one, else the one binary.
func buildOne(cmd *cobra.Command, cache *build.Cache, groups []build.Group, name string) (string, []string, error) {
	for _, group := range groups {
		if group.Name == name {
			dir, err := cache.Group(cmd.Context(), group)
			return dir, group.Names(), err
		}
	}
	path, err := cache.Binary(cmd.Context(), name)
	return filepath.Dir(path), []string{name}, err
}

func newToolCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "tool NAME",
		Short: "Print the path of one binary, which is built first when the cache does not hold it",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cache, err := newCache(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			path, err := cache.Binary(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), path)
			return nil
		},
	}
}

func newCache(progress io.Writer) (*build.Cache, error) {
	source, err := sourceDir()
	if err != nil {
		return nil, err
	}
	root, err := build.DefaultRoot()
	if err != nil {
		return nil, err
	}
	return &build.Cache{Source: source, Root: root, Progress: progress}, nil
}

// repositoryRoot is the checkout that this program belongs to: the first
// directory above the executable, else above the working directory, that has
// the modules of the binaries.
func repositoryRoot() (string, error) {
	var starts []string
	if executable, err := os.Executable(); err == nil {
		starts = append(starts, filepath.Dir(executable))
	}
	if cwd, err := os.Getwd(); err == nil {
		starts = append(starts, cwd)
	}
	for _, start := range starts {
		for dir := start; ; dir = filepath.Dir(dir) {
			if _, err := os.Stat(filepath.Join(dir, "test/cluster/build/kubernetes/go.mod")); err == nil {
				return dir, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", errors.New("no checkout with test/cluster/build is above this program or the working directory: run it inside one")
}

func sourceDir() (string, error) {
	root, err := repositoryRoot()
	return filepath.Join(root, "test/cluster"), err
}
