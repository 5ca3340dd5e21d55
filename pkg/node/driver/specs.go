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

// goneInterval is how often the directory is looked for: the kernel does not
// report the removal of one that is mounted here.
const goneInterval = 30 * time.Second

// rewatches are between attempts to watch the CDI directory. A node on which other processes have all inotify
// instances of root (fs.inotify.max_user_instances, 128 by default) may never have one.
var rewatches = wait.Backoff{Duration: time.Second, Factor: 2, Cap: goneInterval, Steps: math.MaxInt}

// errGone: the CDI directory was removed, and so were all files in it.
var errGone = errors.New("it was removed")

// watchSpecs re-makes CDI files that somebody else removes: the runtime reads
// them again at every start of a container, long after kubelet's last call.
// Without a watch it looks for missing files after each attempt to get one.
// It fails when the directory cannot be made anew.
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

// remakeSpecs re-makes the files that are missing. Reconcile, which asks the API server about each claim, is
// woken only for a directory that was gone.
func (d *Driver) remakeSpecs(ctx context.Context, gone bool) error {
	if !gone && !d.specs.Gone() {
		d.restoreMissing(ctx)
		return nil
	}
	if err := d.specs.Make(); err != nil && !atomicfile.IsFull(err) {
		return fmt.Errorf("make the CDI directory anew: %w: if it is a mount whose source was removed, a restart of this container mounts the new one", err)
	}
	d.restoreSpecs(ctx)
	d.wakeReconcile()
	return nil
}

// restoreMissing looks at no device of a claim whose file is there.
func (d *Driver) restoreMissing(ctx context.Context) {
	records, err := d.preparer.Prepared(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Removed CDI files cannot be looked for")
		return
	}
	for _, record := range records {
		if claim := types.UID(record.ClaimUID); !d.specs.Has(claim) {
			d.restoreClaim(ctx, claim)
		}
	}
}

// watchSpecsOnce returns when the directory is not watched, or no longer.
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

// restoreSpecs does not wait for the API server, which may be what is away.
func (d *Driver) restoreSpecs(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	if err := d.preparer.RestoreSpecs(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Not every CDI file could be re-made")
	}
}

func (d *Driver) wakeReconcile() {
	select {
	case d.restored <- struct{}{}:
	default: // reconcile has not yet seen the last one
	}
}

// restoreSpec does nothing for files that the driver removed itself: their
// claims have no record any more.
func (d *Driver) restoreSpec(ctx context.Context, path string) {
	if claim, ours := d.specs.Owns(path); ours {
		d.restoreClaim(ctx, claim)
	}
}

func (d *Driver) restoreClaim(ctx context.Context, claim types.UID) {
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	if err := d.preparer.RestoreSpec(ctx, claim); err != nil {
		klog.FromContext(ctx).Error(err, "A CDI file that was removed could not be re-made", "claim", claim)
	}
}
