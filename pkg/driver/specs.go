package driver

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

// rewatchDelay is how long a vanished CDI directory is left alone.
const rewatchDelay = time.Second

// watchSpecs re-makes CDI files that somebody else removes: the runtime reads
// them again at every start of a container, long after kubelet's last call.
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
		if err := os.MkdirAll(d.specs.Path(), 0o755); err != nil {
			continue // the next round says why it cannot be watched
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
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
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
	d.wakeReconcile()
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
