package driver

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/probe"
)

// refusalWait is the time between two checks of a socket: a process that starts may have created its
// socket and not listen yet.
const refusalWait = time.Second

// sockets are the paths that the helper chooses for its two servers.
func (d *Driver) sockets() (registrar, dra string) { return d.socketsOf(d.PodUID) }

func (d *Driver) socketsOf(pod types.UID) (registrar, dra string) {
	dataDir := DataDir(d.PluginsDir, d.Name)
	if pod == "" {
		return filepath.Join(d.RegistrarDir, d.Name+"-reg.sock"), filepath.Join(dataDir, "dra.sock")
	}
	return filepath.Join(d.RegistrarDir, kubeletplugin.RollingUpdateRegistrarSocketFile(d.RegistrarDir, d.Name, pod)),
		filepath.Join(dataDir, "dra-"+string(pod)+".sock")
}

// removeDeadSockets removes sockets of this driver's former pods, which kubelet would dial forever.
// Sockets with a listener stay.
func (d *Driver) removeDeadSockets(ctx context.Context) error {
	var suspects []string
	for _, pod := range d.formerPods(ctx) {
		registrar, dra := d.socketsOf(pod)
		for _, path := range []string{registrar, dra} {
			if refuses(ctx, path) {
				suspects = append(suspects, path)
			}
		}
	}
	if len(suspects) == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(refusalWait):
	}
	for _, path := range suspects {
		if !refuses(ctx, path) {
			continue
		}
		klog.FromContext(ctx).Info("Removing the socket of a dead plugin", "path", path)
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			klog.FromContext(ctx).Error(err, "Cannot remove the socket of a dead plugin")
		}
	}
	return nil
}

var podUID = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// formerPods lists all other pods that have a socket. In kubelet's directory only a whole UID counts:
// other text after the driver's name may be part of another driver's name.
func (d *Driver) formerPods(ctx context.Context) []types.UID {
	found := map[types.UID]bool{"": true}
	for _, name := range fileNames(ctx, DataDir(d.PluginsDir, d.Name)) {
		if pod, isOurs := middle(name, "dra-", ".sock"); isOurs {
			found[types.UID(pod)] = true
		}
	}
	for _, name := range fileNames(ctx, d.RegistrarDir) {
		if pod, isOurs := middle(name, d.Name+"-", "-reg.sock"); isOurs && podUID.MatchString(pod) {
			found[types.UID(pod)] = true
		}
	}
	delete(found, d.PodUID)
	return slices.Collect(maps.Keys(found))
}

func fileNames(ctx context.Context, dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot look for sockets of dead plugins")
	}
	list := make([]string, 0, len(entries))
	for _, entry := range entries {
		list = append(list, entry.Name())
	}
	return list
}

func middle(name, prefix, suffix string) (string, bool) {
	name, begins := strings.CutPrefix(name, prefix)
	name, ends := strings.CutSuffix(name, suffix)
	return name, begins && ends
}

// refuses reports whether the path is a socket without a listener, by the kernel's refusal alone.
func refuses(ctx context.Context, path string) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, probe.Timeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close() // only the answer mattered
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
