package mps

import (
	"context"
	"fmt"
	"os"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"
)

// watch tells, until ctx ends, that something in the directory may have changed,
// and makes the directory where it is missing. Who reads the channel looks from
// time to time all the same: a watch can be lost.
func watch(ctx context.Context, dir string) (<-chan struct{}, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a directory of the MPS control daemons: %w: choose a writable --mps-root", err)
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch the MPS control daemons: %w: raise fs.inotify.max_user_instances on the node", err)
	}
	if err := watcher.Add(dir); err != nil {
		_ = watcher.Close() // the other error counts
		return nil, fmt.Errorf("watch the MPS control daemons: %w", err)
	}
	changed := make(chan struct{}, 1)
	go func() {
		defer func() { _ = watcher.Close() }()
		for {
			select {
			case <-ctx.Done():
				return
			case err := <-watcher.Errors:
				klog.FromContext(ctx).V(2).Info("Lost events of a directory", "directory", dir, "err", err)
			case <-watcher.Events:
			}
			select {
			case changed <- struct{}{}:
			default: // a look is due already
			}
		}
	}()
	return changed, nil
}
