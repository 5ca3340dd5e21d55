package driver

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/lock"
	"github.com/mica-gpu/mica/pkg/node/prepare"
)

// NewPreparer opens the records, locks and CDI files that the processes of one node and driver name
// share, and returns a Preparer over them. It uses claims to find out whether a claim that holds a
// device is gone. Errors say what to change.
func NewPreparer(o Options, claims prepare.Claims) (*prepare.Preparer, *cdi.Directory, error) {
	dataDir := DataDir(o.PluginsDir, o.Name)
	if err := os.MkdirAll(dataDir, 0o750); err != nil {
		return nil, nil, fmt.Errorf("create state directory: %w: choose a writable --kubelet-plugins-directory-path", err)
	}
	records, err := journal.Open(filepath.Join(dataDir, "claims"))
	if err != nil {
		return nil, nil, err
	}
	locks, err := lock.Open(filepath.Join(dataDir, "locks"))
	if err != nil {
		return nil, nil, err
	}
	specs, err := cdi.NewDirectory(o.CDIRoot, o.Name)
	if err != nil {
		return nil, nil, err
	}
	return prepare.New(prepare.Options{
		Journal:     records,
		CDI:         specs,
		Locks:       locks,
		Claims:      claims,
		Phases:      phases{},
		Driver:      o.Name,
		Pool:        o.NodeName,
		BootID:      o.BootID,
		ReleaseWait: releaseWait,
		GoneWait:    goneWait,
	}), specs, nil
}
