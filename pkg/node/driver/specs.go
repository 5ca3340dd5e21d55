package driver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/atomicfile"
)

// goneInterval is how often the directory is checked: the kernel does not report the removal of a
// mounted one.
const goneInterval = 30 * time.Second

// rewatches are the delays between attempts to watch the CDI directory. On a node whose processes use
// all inotify instances of root (fs.inotify.max_user_instances, default 128), no attempt may succeed.
var rewatches = wait.Backoff{Duration: time.Second, Factor: 2, Cap: goneInterval, Steps: math.MaxInt}

// errGone: the CDI directory was removed with all its files.
var errGone = errors.New("it was removed")

// watchSpecs writes removed CDI files again: the runtime reads them at every start of a container,
// long after kubelet's last call. Without a watch it checks for missing files at each retry. It
// returns an error if the directory cannot be created.
func (d *Driver) watchSpecs(ctx context.Context) error {
	var pause wait.DelayFunc
	var reported string
	rest := func() { pause, reported = rewatches.DelayFunc(), "" }
	rest()
	for {
		err := d.watchSpecsOnce(ctx, rest)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err.Error() != reported {
			reported = err.Error()
			klog.FromContext(ctx).Info("Cannot watch the CDI directory; looking for missing files less and less often until a watch succeeds", "directory", d.specs.Path(), "reason", reported, "atLeastEvery", goneInterval)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause()):
		}
		if err := d.remakeSpecs(ctx, errors.Is(err, errGone)); err != nil {
			return err
		}
	}
}

// remakeSpecs writes missing files. It wakes reconcile, which reads each claim from the API server,
// only if the directory was gone.
func (d *Driver) remakeSpecs(ctx context.Context, gone bool) error {
	if !gone && !d.specs.Gone() {
		d.restoreMissing(ctx)
		return nil
	}
	if err := d.specs.Make(); err != nil && !atomicfile.IsFull(err) {
		return fmt.Errorf("create the CDI directory again: %w: if its mount's source was removed, restart this container", err)
	}
	d.restoreSpecs(ctx)
	d.restored.Wake()
	return nil
}

// restoreMissing skips claims whose file exists.
func (d *Driver) restoreMissing(ctx context.Context) {
	records, err := d.preparer.Prepared(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot look for removed CDI files")
		return
	}
	for _, record := range records {
		if claim := types.UID(record.ClaimUID); !d.specs.Has(claim) {
			d.restoreClaim(ctx, claim)
		}
	}
}

// watchSpecsOnce returns when the watch fails or ends.
func (d *Driver) watchSpecsOnce(ctx context.Context, watching func()) error {
	watcher, err := d.newWatcher()
	if err != nil {
		return fmt.Errorf("%w: raise fs.inotify.max_user_instances on the node", err)
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(d.specs.Path()); err != nil {
		return err
	}
	watching()
	look := time.NewTicker(goneInterval)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
			if d.specs.Gone() {
				return errGone
			}
		case err := <-watcher.Errors:
			return err
		case event := <-watcher.Events:
			if !event.Has(fsnotify.Remove) && !event.Has(fsnotify.Rename) {
				continue
			}
			if event.Name == d.specs.Path() {
				return errGone
			}
			d.restoreSpec(ctx, event.Name)
		}
	}
}

// restoreSpecs does not depend on the API server.
func (d *Driver) restoreSpecs(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	if err := d.preparer.RestoreSpecs(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot restore every CDI file")
	}
}

// restoreSpec ignores files that the driver itself removed: their claims have no record.
func (d *Driver) restoreSpec(ctx context.Context, path string) {
	if claim, ours := d.specs.Owns(path); ours {
		d.restoreClaim(ctx, claim)
	}
}

func (d *Driver) restoreClaim(ctx context.Context, claim types.UID) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	if err := d.preparer.RestoreSpec(ctx, claim); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot restore a removed CDI file", "claim", claim)
	}
}
