// Package image owns the container images of a cluster without a registry: it
// assembles them from binaries and this machine's glibc into archives that
// containerd imports. It runs nothing and pulls nothing.
package image

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Recipe is an image to assemble.
type Recipe struct {
	// Name is the complete reference, such as mica.local/workload:dev.
	Name string
	// Binaries are paths on this machine. They land in /usr/bin.
	Binaries []string
	// Entrypoint is the image's; the first binary when empty.
	Entrypoint []string
	// Glibc adds the loader and libc even when no binary needs them, for
	// programs that are mounted into the container.
	Glibc bool
}

// Write assembles the image into a docker-archive at path. The same inputs
// give the same bytes.
func (r Recipe) Write(path string) error {
	tag, err := name.NewTag(r.Name, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("reading the image's name: %w: give it whole, such as mica.local/kubelet-plugin:dev", err)
	}
	if len(r.Binaries) == 0 {
		return errors.New("an image needs a binary: give --binary")
	}
	assembled, err := r.assemble()
	if err != nil {
		return err
	}
	partial := fmt.Sprintf("%s.%d", path, os.Getpid())
	defer os.Remove(partial)
	if err := tarball.WriteToFile(partial, tag, assembled); err != nil {
		return fmt.Errorf("writing the image %s: %w", r.Name, err)
	}
	if err := os.Rename(partial, path); err != nil {
		return fmt.Errorf("writing the image %s: %w", r.Name, err)
	}
	return nil
}

func (r Recipe) assemble() (v1.Image, error) {
	files, err := r.tree()
	if err != nil {
		return nil, err
	}
	archive, err := files.archive()
	if err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil }
	layer, err := tarball.LayerFromOpener(opener, tarball.WithCompression(compression.None))
	if err != nil {
		return nil, fmt.Errorf("making the layer of %s: %w", r.Name, err)
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, fmt.Errorf("making the image %s: %w", r.Name, err)
	}
	entrypoint := r.Entrypoint
	if len(entrypoint) == 0 {
		entrypoint = []string{"/usr/bin/" + filepath.Base(r.Binaries[0])}
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("making the image %s: %w", r.Name, err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Config.Entrypoint = entrypoint
	file.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	image, err = mutate.ConfigFile(image, file)
	if err != nil {
		return nil, fmt.Errorf("making the image %s: %w", r.Name, err)
	}
	return image, nil
}

// tree is the image's file system.
func (r Recipe) tree() (tree, error) {
	files := newTree()
	for _, binary := range r.Binaries {
		if err := files.file(binary, "/usr/bin/"+filepath.Base(binary)); err != nil {
			return nil, err
		}
	}
	libraries, err := dependencies(r.Binaries, r.Glibc)
	if err != nil {
		return nil, err
	}
	for _, library := range libraries {
		if err := files.file(library, library); err != nil {
			return nil, err
		}
	}
	return files, nil
}
