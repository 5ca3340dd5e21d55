package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

const (
	// rewatchDelay is how long a vanished CDI directory is left alone.
	rewatchDelay = time.Second
	// goneInterval is how often the directory is looked for: the kernel does not
	// report the removal of one that is mounted here.
	goneInterval = 30 * time.Second
)

// watchSpecs re-makes CDI files that somebody else removes: the runtime reads
// them again at every start of a container, long after kubelet's last call.
// It fails when the directory cannot be made anew.
func (d *Driver) watchSpecs(ctx context.Context) error {
	for {
		err := d.watchSpecsOnce(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		klog.FromContext(ctx).Error(err, "The CDI directory cannot be watched, making it anew", "retryIn", rewatchDelay)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rewatchDelay):
		}
		if err := d.specs.Make(); err != nil {
			return fmt.Errorf("make the CDI directory anew: %w: if it is a mount whose source was removed, a restart of this container mounts the new one", err)
		}
		d.restoreSpecs(ctx)
	}
}

// watchSpecsOnce returns when the directory can no longer be watched.
func (d *Driver) watchSpecsOnce(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch CDI directory: %w", err)
	}
	defer func() { _ = watcher.Close() }()
	if err := watcher.Add(d.specs.Path()); err != nil {
		return fmt.Errorf("watch CDI directory: %w", err)
	}
	look := time.NewTicker(goneInterval)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
			if d.specs.Gone() {
				return fmt.Errorf("directory %s was removed", d.specs.Path())
			}
		case err := <-watcher.Errors:
			return err
		case event := <-watcher.Events:
			if !event.Has(fsnotify.Remove) && !event.Has(fsnotify.Rename) {
				continue
			}
			if event.Name == d.specs.Path() {
				return fmt.Errorf("directory %s was removed", event.Name)
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
	select {
	case d.restored <- struct{}{}:
	default: // reconcile has not yet seen the last one
	}
}

// restoreSpec does nothing for files that the driver removed itself: their
// claims have no record any more.
func (d *Driver) restoreSpec(ctx context.Context, path string) {
	claim, ours := d.specs.Owns(path)
	if !ours {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callBudget)
	defer cancel()
	if err := d.preparer.RestoreSpec(ctx, claim); err != nil {
		klog.FromContext(ctx).Error(err, "A CDI file that was removed could not be re-made", "path", path)
	}
}
