package sandbox

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// enter makes the mount namespace that this process was cloned into the
// cluster's own: nothing mounted in it reaches the machine, and what the
// machine unmounts vanishes here too.
func enter() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("cutting the cluster's mounts off from the machine's: %w", err)
	}
	// The machine's /proc shows other process IDs than the ones seen here.
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /proc for the cluster's processes: %w", err)
	}
	return nil
}

// Share lets mounts propagate between pods and the node, which kubelet's
// HostToContainer and Bidirectional need. It comes after every Replace and
// Shadow: binding a shared mount would make each later mount appear twice.
func Share() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("letting the cluster's mounts propagate to pods: %w", err)
	}
	return nil
}

// Replace puts an empty directory in place of the machine's directory path,
// for programs that insist on writing there.
func Replace(path, stand string) error {
	if err := os.MkdirAll(stand, 0o755); err != nil {
		return fmt.Errorf("making what stands in for %s: %w", path, err)
	}
	if err := unix.Mount(stand, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("putting %s in place of %s: %w", stand, path, err)
	}
	return nil
}

// Shadow puts a directory in place of the machine's directory path that shows
// everything the machine's has now, and keeps what is added in the cluster
// from the machine. The stand-in may be below path.
func Shadow(path, stand string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("listing what to keep of %s: %w", path, err)
	}
	if err := Replace(stand, stand); err != nil {
		return err
	}
	for _, entry := range entries {
		from, to := filepath.Join(path, entry.Name()), filepath.Join(stand, entry.Name())
		recursive := uintptr(unix.MS_REC)
		if strings.HasPrefix(stand, from+"/") {
			// It holds the mounts that are being made here.
			recursive = 0
		}
		if err := show(entry, from, to, recursive); err != nil {
			return fmt.Errorf("keeping %s visible in the cluster: %w", from, err)
		}
	}
	if err := unix.Mount(stand, path, "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("putting %s in place of %s: %w", stand, path, err)
	}
	return nil
}

// show makes the entry from appear at to.
func show(entry os.DirEntry, from, to string, recursive uintptr) error {
	switch {
	case entry.Type()&os.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case entry.IsDir():
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
	default:
		if err := os.WriteFile(to, nil, 0o644); err != nil {
			return err
		}
	}
	return unix.Mount(from, to, "", unix.MS_BIND|recursive, "")
}

// Devices are the directories of device nodes in which the plugin makes nodes and links. A machine
// without GPUs lacks the capability devices of MIG, and one without udev, such as a container, the
// links by number.
var Devices = []string{"/dev/char", "/dev/nvidia-caps"}

// MakeDevices makes these directories unless they are there, for there has to be one that a Shadow
// can be put in place of. They stay, empty, until the machine reboots: to remove one would take another
// cluster's shadow away.
func MakeDevices() error {
	for _, path := range Devices {
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("making %s, which the cluster shadows: %w", path, err)
		}
	}
	return nil
}

// Overlays reports whether an overlay file system can be mounted below dir: it
// cannot where dir is on one itself, as in most containers.
func Overlays(dir string) bool {
	root, err := os.MkdirTemp(dir, "overlay-probe")
	if err != nil {
		return false
	}
	defer os.RemoveAll(root)
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if os.Mkdir(filepath.Join(root, name), 0o755) != nil {
			return false
		}
	}
	merged := filepath.Join(root, "merged")
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", root)
	if unix.Mount("overlay", merged, "overlay", 0, options) != nil {
		return false
	}
	return unix.Unmount(merged, unix.MNT_DETACH) == nil
}

// unmountBelow takes away every mount below dir that this process can see.
func unmountBelow(dir string) error {
	points, err := mountPoints(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, point := range points {
		if err := unix.Unmount(point, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", point, err))
		}
	}
	return errors.Join(errs...)
}

// mountPoints lists the mount points at and below dir, deepest first.
func mountPoints(dir string) ([]string, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("listing mounts: %w", err)
	}
	defer file.Close()
	var points []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 {
			continue
		}
		point := unescape(fields[4])
		if point == dir || strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	// Within one path the last mount is on top, and mountinfo lists it last.
	sort.SliceStable(points, func(i, j int) bool { return len(points[i]) > len(points[j]) })
	return points, lines.Err()
}

// unescape undoes proc(5)'s octal escapes of mount points.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}
