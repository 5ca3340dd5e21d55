package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sort"
	"strings"
)

// entry is one file of an image. A directory has neither content nor link.
type entry struct {
	content []byte
	link    string
	mode    int64
}

// tree is a file system by path without a leading slash.
type tree map[string]entry

// merged are the directories that distributions have merged into /usr. What
// CDI mounts at either name then lands in the same place.
var merged = []string{"bin", "lib", "lib64", "sbin"}

// newTree is what every image has: somewhere to mount a driver's files, a
// writable /tmp and the users that containers are started as.
func newTree() tree {
	t := tree{}
	for _, name := range merged {
		t.dir("usr/"+name, 0o755)
		t[name] = entry{link: "usr/" + name, mode: 0o777}
	}
	for _, name := range []string{"dev", "etc", "proc", "root", "run", "sys", "var/lib", "var/log"} {
		t.dir(name, 0o755)
	}
	t.dir("tmp", 0o1777)
	t["var/run"] = entry{link: "../run", mode: 0o777}
	t["etc/passwd"] = entry{mode: 0o644, content: []byte("root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n")}
	t["etc/group"] = entry{mode: 0o644, content: []byte("root:x:0:\nnobody:x:65534:\n")}
	return t
}

// dir adds a directory and those above it.
func (t tree) dir(name string, mode int64) {
	if parent := path.Dir(name); parent != "." {
		if _, ok := t[parent]; !ok {
			t.dir(parent, 0o755)
		}
	}
	t[name] = entry{mode: mode}
}

// file copies a file of this machine to a path in the image.
func (t tree) file(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("reading a file of the image: %w", err)
	}
	to = unmerge(strings.TrimPrefix(path.Clean(to), "/"))
	if parent := path.Dir(to); parent != "." {
		if _, ok := t[parent]; !ok {
			t.dir(parent, 0o755)
		}
	}
	t[to] = entry{content: content, mode: 0o755}
	return nil
}

// unmerge gives a path below a merged directory its real name.
func unmerge(name string) string {
	for _, dir := range merged {
		if strings.HasPrefix(name, dir+"/") {
			return "usr/" + name
		}
	}
	return name
}

// archive is the tree as a tar stream: the same bytes for the same tree.
func (t tree) archive() ([]byte, error) {
	names := make([]string, 0, len(t))
	for name := range t {
		names = append(names, name)
	}
	sort.Strings(names)
	var buffer bytes.Buffer
	writer := tar.NewWriter(&buffer)
	for _, name := range names {
		if err := t[name].write(writer, name); err != nil {
			return nil, fmt.Errorf("writing %s into the image: %w", name, err)
		}
	}
	if err := writer.Close(); err != nil {
		return nil, fmt.Errorf("writing the image's layer: %w", err)
	}
	return buffer.Bytes(), nil
}

func (e entry) write(writer *tar.Writer, name string) error {
	header := &tar.Header{Name: name, Mode: e.mode, Format: tar.FormatPAX}
	switch {
	case e.link != "":
		header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
	case e.content != nil:
		header.Typeflag, header.Size = tar.TypeReg, int64(len(e.content))
	default:
		header.Typeflag, header.Name = tar.TypeDir, name+"/"
	}
	err := writer.WriteHeader(header)
	if header.Typeflag != tar.TypeReg {
		return err
	}
	_, copyErr := io.Copy(writer, bytes.NewReader(e.content))
	return errors.Join(err, copyErr)
}
