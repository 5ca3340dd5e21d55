// Package cdi owns the Container Device Interface specifications that the driver hands to the
// container runtime: one file per claim, and the edits in it, which nvcdi derives from the
// installed NVIDIA driver. It never decides which claim gets which GPU, and its errors do not
// name the claim.
package cdi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/pkg/parser"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/node/atomicfile"
	"github.com/mica-gpu/mica/pkg/node/selinux"
)

const (
	// class of the CDI kind <driver name>/claim.
	class = "claim"
	// annotationClaim holds namespace/name of the claim, for administrators who read the
	// directory, and to find the claim of a lost record.
	annotationClaim = "mica.gpu/claim"
	// annotationRecord holds Claim.Record.
	annotationRecord = "mica.gpu/record"

	filePrefix = "mica-"
	fileSuffix = ".json"
	// tempSuffix keeps the runtime from reading a file that is being written.
	tempSuffix = ".tmp"
	// probeFile proves that the directory can be written.
	probeFile = filePrefix + "probe" + tempSuffix
	// filesSuffix makes the directory of a claim's Files. The runtime does not
	// look into directories.
	filesSuffix = ".files"
)

// Claim names the claim that a specification belongs to.
type Claim struct {
	UID types.UID
	types.NamespacedName
	// Record is the driver's record of the claim, opaque to this package. Every user of the
	// node can read it.
	Record string
}

// Device is one device of a claim, with what it adds to a container.
type Device struct {
	// Name is unique within the claim.
	Name  string
	Edits cdispec.ContainerEdits
	// Files are brought into the containers that use the device.
	Files []File
}

// File is a small file whose content is mounted into a container.
type File struct {
	// Name is unique within the claim, and a file name.
	Name string
	// ContainerPath is where the container finds it.
	ContainerPath string
	Content       []byte
}

// Directory holds the driver's specifications among those of other vendors.
// It is safe for concurrent use as long as callers serialise changes to one claim.
type Directory struct {
	path   string
	vendor string
	share  func(paths ...string) error // lets containers use files; a test has its own
}

// NewDirectory makes the directory as Make does.
func NewDirectory(path, driverName string) (*Directory, error) {
	if err := parser.ValidateVendorName(driverName); err != nil {
		return nil, fmt.Errorf("driver name %q cannot be a CDI vendor: %w", driverName, err)
	}
	// Clean, as the paths of its files are in the kernel's events.
	directory := &Directory{path: filepath.Clean(path), vendor: driverName, share: selinux.Share}
	if err := directory.Make(); err != nil {
		return nil, err
	}
	return directory, nil
}

// Make creates the directory if it is missing and proves that it can be written: a mount whose
// source was removed exists, but takes no file. A full disk is no error if the directory
// exists: Write reports it, and Remove makes space.
func (d *Directory) Make() error {
	if err := os.MkdirAll(d.path, 0o755); err != nil {
		return fmt.Errorf("create CDI directory: %w: choose a writable --cdi-root that the container runtime reads", err)
	}
	// The probe's name is always the same, so that the next start removes what a killed process
	// has left. O_EXCL follows no link. If the probe exists again, the other process of a
	// rolling update has just written it.
	probe := filepath.Join(d.path, probeFile)
	err := os.RemoveAll(probe)
	if err == nil {
		var file *os.File
		if file, err = os.OpenFile(probe, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err == nil {
			err = errors.Join(file.Close(), os.RemoveAll(probe))
		} else if errors.Is(err, fs.ErrExist) || atomicfile.IsFull(err) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("CDI directory %s cannot be written: %w: choose a writable --cdi-root that the container runtime reads", d.path, err)
	}
	return nil
}

// Gone reports whether the directory was removed, also if a mount of it is left.
func (d *Directory) Gone() bool {
	var stat syscall.Stat_t
	err := syscall.Stat(d.path, &stat)
	return errors.Is(err, fs.ErrNotExist) || err == nil && stat.Nlink == 0
}

// Path is where the specifications are.
func (d *Directory) Path() string { return d.path }

// DeviceID is the qualified name under which the runtime finds a device of a
// claim. It contains the claim's UID, so that a runtime's cache can never
// serve an older claim's device.
func (d *Directory) DeviceID(claim types.UID, device string) string {
	return parser.QualifiedName(d.vendor, class, deviceName(claim, device))
}

func deviceName(claim types.UID, device string) string {
	return string(claim) + "-" + device
}

// Write publishes the claim's specification atomically: common applies to
// every container that uses any of the devices.
func (d *Directory) Write(claim Claim, common cdispec.ContainerEdits, devices []Device) error {
	spec := &cdispec.Spec{
		Kind:           d.vendor + "/" + class,
		Annotations:    map[string]string{annotationClaim: claim.String(), annotationRecord: claim.Record},
		ContainerEdits: common,
	}
	for _, device := range devices {
		edits, err := d.addFiles(claim, device)
		if err != nil {
			return err
		}
		spec.Devices = append(spec.Devices, cdispec.Device{
			Name:           deviceName(claim.UID, device.Name),
			ContainerEdits: edits,
		})
	}
	version, err := cdispec.MinimumRequiredVersion(spec)
	if err != nil {
		return fmt.Errorf("choose the version of the CDI specification: %w", err)
	}
	spec.Version = version
	content, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode the CDI specification: %w", err)
	}
	if err := replace(d.file(claim.UID), content); err != nil {
		return fmt.Errorf("write the CDI specification: %w: check that --cdi-root is writable and not full", err)
	}
	return nil
}

// addFiles writes a device's files and mounts them.
func (d *Directory) addFiles(claim Claim, device Device) (cdispec.ContainerEdits, error) {
	edits := device.Edits
	edits.Mounts = slices.Clone(edits.Mounts)
	for _, file := range device.Files {
		path := filepath.Join(d.files(claim.UID), file.Name)
		err := os.MkdirAll(d.files(claim.UID), 0o755)
		if err == nil {
			err = replace(path, file.Content)
		}
		if err == nil {
			err = d.share(d.files(claim.UID), path)
		}
		if err != nil {
			return edits, fmt.Errorf("write the device metadata of request %q: %w: check that --cdi-root is writable and not full", file.Name, err)
		}
		edits.Mounts = append(edits.Mounts, &cdispec.Mount{HostPath: path, ContainerPath: file.ContainerPath, Options: []string{"ro", "bind"}})
	}
	return edits, nil
}

// replace writes what the runtime and its users read; it holds no secret.
func replace(path string, content []byte) error {
	return atomicfile.Write(path, path+tempSuffix, bytes.NewReader(content), 0o644)
}

// Remove deletes the claim's specification; a missing one is not an error.
func (d *Directory) Remove(claim types.UID) error {
	for _, path := range []string{d.file(claim), d.file(claim) + tempSuffix} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the CDI specification: %w", err)
		}
	}
	if err := os.RemoveAll(d.files(claim)); err != nil {
		return fmt.Errorf("remove the files beside the CDI specification: %w", err)
	}
	return nil
}

// Has reports whether the claim's specification exists.
func (d *Directory) Has(claim types.UID) bool {
	_, err := os.Stat(d.file(claim))
	return err == nil
}

// Owns reports whether a path in the directory is a specification of this
// driver, with its claim.
func (d *Directory) Owns(path string) (types.UID, bool) {
	name := filepath.Base(path)
	name, isOurs := strings.CutPrefix(name, d.prefix())
	name, isSpec := strings.CutSuffix(name, fileSuffix)
	return types.UID(name), isOurs && isSpec && name != ""
}

// Claims lists the claims that have a specification or the remains of one.
func (d *Directory) Claims() ([]types.UID, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("list CDI directory: %w", err)
	}
	var claims []types.UID
	for _, entry := range entries {
		uid, ours := d.Owns(strings.TrimSuffix(strings.TrimSuffix(entry.Name(), tempSuffix), filesSuffix))
		if ours && !slices.Contains(claims, uid) {
			claims = append(claims, uid)
		}
	}
	return claims, nil
}

// Read returns the claim that a specification names: only its UID if there is no specification,
// or a damaged one. Other errors may pass.
func (d *Directory) Read(uid types.UID) (Claim, error) {
	claim := Claim{UID: uid}
	content, err := d.content(uid)
	if err != nil {
		return claim, err
	}
	var spec struct{ Annotations map[string]string }
	if json.Unmarshal(content, &spec) == nil {
		claim.Namespace, claim.Name, _ = strings.Cut(spec.Annotations[annotationClaim], string(types.Separator))
		claim.Record = spec.Annotations[annotationRecord]
	}
	return claim, nil
}

// Spec is the claim's specification, empty when there is none or it is damaged.
func (d *Directory) Spec(uid types.UID) (cdispec.Spec, error) {
	content, err := d.content(uid)
	if err != nil {
		return cdispec.Spec{}, err
	}
	var spec cdispec.Spec
	if json.Unmarshal(content, &spec) != nil {
		return cdispec.Spec{}, nil
	}
	return spec, nil
}

// content is that of a claim's specification, nil when there is none.
func (d *Directory) content(uid types.UID) ([]byte, error) {
	content, err := os.ReadFile(d.file(uid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EISDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the CDI specification: %w", err)
	}
	return content, nil
}

// prefix ends in a character that no driver name contains: the files of a
// driver whose name begins with this one's are not taken for this one's.
func (d *Directory) prefix() string { return filePrefix + d.vendor + "_" }

func (d *Directory) file(claim types.UID) string {
	return filepath.Join(d.path, d.prefix()+string(claim)+fileSuffix)
}

// files is the directory of a claim's files.
func (d *Directory) files(claim types.UID) string { return d.file(claim) + filesSuffix }
