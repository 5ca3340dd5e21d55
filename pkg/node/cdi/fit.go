package cdi

import (
	"bytes"
	"encoding/json"
	"path/filepath"

	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// Fit reports whether an earlier specification is what the installed driver needs. It compares the libraries, the
// hooks and the numbers of capability devices. Of a GPU it looks only at the device nodes: a question to NVML
// about a GPU that does not answer would hold up the claims of the others.
func (e *Edits) Fit(written cdispec.Spec) (bool, error) {
	common, err := e.Common()
	if err != nil {
		return false, err
	}
	if same, err := equal(written.ContainerEdits, common); err != nil || !same {
		return false, err
	}
	for _, device := range written.Devices {
		for _, node := range device.ContainerEdits.DeviceNodes {
			if fits, err := e.fits(node); err != nil || !fits {
				return false, err
			}
		}
	}
	return true, nil
}

// equal compares edits as they are written: no entry is the same as an empty list.
func equal(a, b cdispec.ContainerEdits) (bool, error) {
	first, err := json.Marshal(a)
	if err != nil {
		return false, err
	}
	second, err := json.Marshal(b)
	return bytes.Equal(first, second), err
}

// fits compares the major number of a capability device, which the kernel chooses when the module is loaded. The
// runtime reads the numbers of other devices from the host's nodes.
func (e *Edits) fits(node *cdispec.DeviceNode) (bool, error) {
	if filepath.Dir(node.Path) != capsDir {
		return exists(e.local(hostPath(node), e.roots.hostDev(), e.roots.localDev())), nil
	}
	major, err := e.capsMajor()
	return node.Major == major, err
}
