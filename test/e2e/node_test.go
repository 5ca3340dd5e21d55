//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// machine is the node, when it is a cluster of test/cluster on this machine. Processes are
// found by the container that they are in, and files through the plugin's own root
// directory, so that neither depends on where the cluster keeps its mounts.
type machine struct {
	*installation
}

// onNode returns access to the node, or skips the test.
func (in *installation) onNode(t testing.TB) machine {
	t.Helper()
	if !in.local() {
		skip(t, "MICA_CLUSTER_DIR is not set, so there is no access to the node's processes and files")
	}
	return machine{in}
}

func (in *installation) local() bool { return os.Getenv("MICA_CLUSTER_DIR") != "" }

// processOf returns the process ID of the container's first process.
func (m machine) processOf(pod *corev1.Pod, container string) (int, error) {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name != container {
			continue
		}
		_, id, found := strings.Cut(status.ContainerID, "://")
		if !found || status.State.Running == nil {
			return 0, fmt.Errorf("container %s of pod %s does not run: %s", container, pod.Name, summary(pod))
		}
		return firstProcess(id)
	}
	return 0, fmt.Errorf("pod %s has no container %s yet: %s", pod.Name, container, summary(pod))
}

// firstProcess finds the process with ID 1 of its own namespace in the container's cgroup.
func firstProcess(containerID string) (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		cgroup, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cgroup"))
		if err != nil || !bytes.Contains(cgroup, []byte(containerID)) {
			continue // ended in the meantime, or another container's
		}
		status, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "status"))
		if err == nil && isFirst(string(status)) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no process is in the cgroup of container %s", containerID)
}

func isFirst(status string) bool {
	for line := range strings.Lines(status) {
		if ids, found := strings.CutPrefix(line, "NSpid:"); found {
			fields := strings.Fields(ids)
			return len(fields) > 1 && fields[len(fields)-1] == "1"
		}
	}
	return false
}

// killPlugin kills the plugin's process without warning, once its pod is ready.
func (m machine) killPlugin(ctx context.Context) (pod *corev1.Pod, err error) {
	err = m.withPlugin(ctx, func(ready *corev1.Pod, pid int) error {
		pod = ready
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			return fmt.Errorf("process %d: %w", pid, err)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("kill the plugin's process: %w", err)
	}
	return pod, nil
}

// pluginRoot is the root directory of the plugin's container. The directories of the node
// that it has mounted have the node's own paths in it.
func (m machine) pluginRoot(ctx context.Context) (root string, err error) {
	err = m.withPlugin(ctx, func(_ *corev1.Pod, pid int) error {
		root = fmt.Sprintf("/proc/%d/root", pid)
		return nil
	})
	return root, err
}

// withPlugin waits for the plugin's ready pod and its process, and does something with it.
func (m machine) withPlugin(ctx context.Context, do func(pod *corev1.Pod, pid int) error) error {
	ctx, cancel := context.WithTimeout(ctx, retryTimeout)
	defer cancel()
	return until(ctx, func(ctx context.Context) error {
		pod, err := m.readyPlugin(ctx)
		if err != nil {
			return err
		}
		pid, err := m.processOf(pod, pluginContainer)
		if err != nil {
			return err
		}
		return do(pod, pid)
	})
}

var claimUID = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// specFiles returns the paths of the plugin's CDI files by claim UID.
func (m machine) specFiles(ctx context.Context) (map[string]string, error) {
	root, err := m.pluginRoot(ctx)
	if err != nil {
		return nil, err
	}
	return filesByClaim(filepath.Join(root, m.cdiRoot), func(name string) bool { return strings.HasPrefix(name, "mica-") })
}

// records returns the paths of the plugin's claim records by claim UID.
func (m machine) records(ctx context.Context) (map[string]string, error) {
	root, err := m.pluginRoot(ctx)
	if err != nil {
		return nil, err
	}
	return filesByClaim(filepath.Join(root, m.pluginsDirectory, m.driver, "claims"), func(string) bool { return true })
}

// mpsDaemons returns the IDs of the MPS daemons that are wanted or were not cleared away.
func (m machine) mpsDaemons(ctx context.Context) ([]string, error) {
	root, err := m.pluginRoot(ctx)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, pattern := range []string{"daemons/*.json", "status/*.json", "*/pipe"} {
		found, err := filepath.Glob(filepath.Join(root, m.mpsRoot, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range found {
			id := strings.TrimSuffix(filepath.Base(path), ".json")
			if id == "pipe" {
				id = filepath.Base(filepath.Dir(path))
			}
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// filesByClaim fails for a file that is the plugin's and has no claim's name, and for what
// was beside a claim's file and is left.
func filesByClaim(directory string, ours func(name string) bool) (map[string]string, error) {
	entries, err := os.ReadDir(directory)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	files, directories := map[string]string{}, map[string]string{}
	for _, entry := range entries {
		path := filepath.Join(directory, entry.Name())
		uid := claimUID.FindString(entry.Name())
		if entry.IsDir() && uid != "" && ours(entry.Name()) {
			directories[uid] = path
		}
		if entry.IsDir() || !ours(entry.Name()) {
			continue
		}
		if uid == "" {
			return nil, fmt.Errorf("the file %s belongs to no claim", path)
		}
		if other, taken := files[uid]; taken {
			return nil, fmt.Errorf("claim %s has two files, %s and %s", uid, other, path)
		}
		files[uid] = path
	}
	for uid, path := range directories {
		if files[uid] == "" {
			return nil, fmt.Errorf("the directory %s is of no claim", path)
		}
	}
	return files, nil
}

// restartKubelet kills kubelet and lets the cluster's supervisor start it again.
func (m machine) restartKubelet(t testing.TB) {
	t.Helper()
	m.cluster(t, "restart", "kubelet")
}

// cluster runs a command of the program that runs the cluster.
func (m machine) cluster(t testing.TB, arguments ...string) {
	t.Helper()
	program := cmp.Or(os.Getenv("MICA_CLUSTER"), "../../bin/cluster")
	command := exec.CommandContext(t.Context(), program, arguments...)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, output)
	}
}

// simulatedMachine names the node file that the cluster's simulator plays, or nothing.
func simulatedMachine(t testing.TB) string {
	t.Helper()
	name := os.Getenv("MICA_E2E_SIM_NODE")
	if name == "" && under.local() {
		content, err := os.ReadFile(filepath.Join(os.Getenv("MICA_CLUSTER_DIR"), "spec.json"))
		must(t, err, "read what the cluster was started with")
		var spec struct{ SimNode string }
		must(t, json.Unmarshal(content, &spec), "read what the cluster was started with")
		name = spec.SimNode
	}
	if name == "" {
		return ""
	}
	return strings.TrimSuffix(filepath.Base(name), ".yaml")
}

// expectNodeMatchesClaims compares what the plugin keeps on the node with the claims that
// are in use there: a record and a CDI file for each of them, and none for any other.
func (in *installation) expectNodeMatchesClaims(ctx context.Context) error {
	if !in.local() {
		return nil
	}
	m := machine{in}
	live, err := in.claimsInUse(ctx)
	if err != nil {
		return err
	}
	specs, err := m.specFiles(ctx)
	if err != nil {
		return err
	}
	records, err := m.records(ctx)
	if err != nil {
		return err
	}
	return errors.Join(
		compareUIDs("CDI files", specs, live),
		compareUIDs("claim records", records, live),
	)
}

// expectClaimOnNode looks for one claim's record and CDI file, where the node can be reached.
func (in *installation) expectClaimOnNode(ctx context.Context, uid string) error {
	if !in.local() {
		return nil
	}
	m := machine{in}
	specs, err := m.specFiles(ctx)
	if err != nil {
		return err
	}
	records, err := m.records(ctx)
	if err != nil {
		return err
	}
	if specs[uid] == "" || records[uid] == "" {
		return fmt.Errorf("claim %s has the CDI file %q and the record %q, want both", uid, specs[uid], records[uid])
	}
	return nil
}

func compareUIDs(what string, files map[string]string, live []string) error {
	var problems []error
	for uid, path := range files {
		if !slices.Contains(live, uid) {
			problems = append(problems, fmt.Errorf("%s: %s is of no claim in use", what, path))
		}
	}
	for _, uid := range live {
		if files[uid] == "" {
			problems = append(problems, fmt.Errorf("%s: there is none for the claim %s", what, uid))
		}
	}
	return errors.Join(problems...)
}
