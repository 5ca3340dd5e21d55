//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// How the simulator writes compute modes and time-slices.
const (
	exclusiveProcess = "Exclusive_Process"
	defaultMode      = "Default"
	defaultSlice     = "Default"
)

var (
	grantedMemory = regexp.MustCompile(`(?m)^mps device \S+ memory (\d+)$`)
	grantedCores  = regexp.MustCompile(`(?m)^mps threads (\d+)%$`)
)

// expectLimits waits until the pod's container is a client of MPS with these limits.
func (s *scenario) expectLimits(pod string, want amounts) {
	s.Helper()
	s.expectLimitsIn(pod, "main", want)
}

func (s *scenario) expectLimitsIn(pod, container string, want amounts) {
	s.Helper()
	s.waitRunning(pod)
	memory, cores := quantityOf(want["memory"]), want["cores"]
	eventually(s, startTimeout, fmt.Sprintf("container %s of pod %s is a client of MPS with %s and %s %%", container, pod, want["memory"], cores), func(ctx context.Context) error {
		log, err := s.podLog(ctx, s.namespace, pod, &corev1.PodLogOptions{Container: container})
		if err != nil {
			return err
		}
		m, c := grantedMemory.FindStringSubmatch(log), grantedCores.FindStringSubmatch(log)
		if m == nil || c == nil {
			return fmt.Errorf("its log has no limits:\n%s", log)
		}
		if m[1] != strconv.FormatInt(memory.Value(), 10) || c[1] != cores {
			return fmt.Errorf("%w: it has %s bytes and %s %%", errNever, m[1], c[1])
		}
		return nil
	})
}

// expectConnected fails when the pod's client has ever lost its daemon: it ends then, and
// kubelet starts it again.
func (s *scenario) expectConnected(name string) {
	s.Helper()
	pod := s.waitRunning(name)
	for _, status := range pod.Status.ContainerStatuses {
		if status.RestartCount > 0 {
			log, err := s.podLog(s.Context(), s.namespace, name, &corev1.PodLogOptions{Container: status.Name, Previous: true})
			s.Errorf("the client in pod %s was started again; its log before (%v):\n%s", name, err, log)
		}
	}
}

// followClient reads the client's log from now on. It returns a function that waits until the client has lost its daemon.
// kubelet keeps only the log of the run before. A client that started again before the next daemon did has ended, too,
// and that log would be its own.
func (s *scenario) followClient(name string) (expectLost func()) {
	s.Helper()
	stream, err := s.client.CoreV1().Pods(s.namespace).GetLogs(name, &corev1.PodLogOptions{Follow: true}).Stream(s.Context())
	must(s, err, "follow the log of pod %s", name)
	ended := make(chan string, 1)
	go func() {
		defer stream.Close()
		log, err := io.ReadAll(stream) // what came before an error is looked at all the same
		if err != nil {
			log = fmt.Appendf(log, "(%v)", err)
		}
		ended <- string(log)
	}()
	return func() {
		s.Helper()
		select {
		case log := <-ended:
			if !strings.Contains(log, "mps lost\n") {
				s.Fatalf("the client in pod %s has ended and not lost its MPS daemon:\n%s", name, log)
			}
		case <-time.After(startTimeout):
			s.Fatalf("the client in pod %s has not lost its MPS daemon within %s", name, startTimeout)
		}
	}
}

// expectUnshared waits until nothing is left of any share.
func (s *scenario) expectUnshared() {
	s.Helper()
	eventually(s, startTimeout, "nothing is left of any share", s.expectNoShares)
}

// expectNoShares wants GPUs with the driver's own time-slice and compute mode, and no
// daemon of MPS. It says nothing where the hardware is not simulated.
func (in *installation) expectNoShares(ctx context.Context) error {
	client, found := simulated()
	if !found {
		return nil
	}
	state, err := client.State()
	if err != nil {
		return err
	}
	for _, g := range state.GPUs {
		if g.ComputeMode != defaultMode || g.Timeslice != defaultSlice {
			return fmt.Errorf("GPU %d has the compute mode %s and the time-slice %s", g.Index, g.ComputeMode, g.Timeslice)
		}
	}
	if !in.local() || in.mpsRoot == "" {
		return nil
	}
	daemons, err := machine{in}.mpsDaemons(ctx)
	if err == nil && len(daemons) > 0 {
		err = errors.New("there are still files of the MPS daemons " + strings.Join(daemons, ", "))
	}
	return err
}
