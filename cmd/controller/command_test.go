package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/mica-gpu/mica/pkg/settings"
	"github.com/mica-gpu/mica/test/fixture"
)

func execute(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	if err := logsapi.ResetForTest(nil); err != nil { // it is applied once a process
		t.Fatal(err)
	}
	command := newCommand()
	var output bytes.Buffer
	command.SetOut(&output)
	command.SetErr(&output)
	command.SetArgs(arguments)
	err := command.ExecuteContext(t.Context())
	return output.String(), err
}

func TestSettingsThatCannotWorkAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		arguments   []string
		environment map[string]string
		want        []string
	}{
		"no namespace":        {nil, nil, []string{"no namespace", "set --namespace"}},
		"an unknown flag":     {[]string{"--nonsense"}, nil, []string{"unknown flag: --nonsense"}},
		"an argument":         {[]string{"please"}, nil, []string{`unknown command "please"`}},
		"a bad variable":      {nil, map[string]string{"METRICS_PORT": "x"}, []string{"environment variable METRICS_PORT"}},
		"a bad pairing":       {[]string{"--discovered-pairing=direct"}, nil, []string{`unknown value "direct": use observe or placeholder`}},
		"a bad discovery":     {[]string{"--discover-node-groups=all"}, nil, []string{`unknown value "all": use off, nodes or eks`}},
		"EKS unknown":         {[]string{"--namespace=m", "--placeholder-image=i", "--discover-node-groups=eks"}, map[string]string{"AWS_REGION": ""}, []string{"set --eks-cluster", "AWS_REGION"}},
		"a bad endpoint":      {[]string{"--namespace=m", "--placeholder-image=i", "--eks-endpoint=nowhere", "--aws-region=r"}, nil, []string{"nowhere", "is no URL"}},
		"no grace":            {[]string{"--namespace=m", "--placeholder-image=i", "--placeholder-grace=0s"}, nil, []string{"--placeholder-grace is 0s", "must be positive"}},
		"an empty taint":      {[]string{"--namespace=m", "--placeholder-image=i", "--startup-taint-prefix="}, nil, []string{"--startup-taint", "give a taint's key"}},
		"no image":            {[]string{"--namespace=m"}, nil, []string{"no image for placeholders", "set --placeholder-image"}},
		"no driver":           {[]string{"--namespace=m", "--driver-name="}, nil, []string{"--driver-name is empty"}},
		"no requests":         {[]string{"--namespace=m", "--placeholder-image=i", "--kube-api-qps=0"}, nil, []string{"both must be positive"}},
		"a port too high":     {[]string{"--namespace=m", "--placeholder-image=i", "--metrics-port=70000"}, nil, []string{"--metrics-port is 70000"}},
		"every client":        {[]string{"--namespace=m", "--placeholder-image=i", "--keda-port=0"}, nil, []string{"--keda-tls-dir", "ca.crt", "--keda-require-client-certificate=false"}},
		"nothing to query":    {[]string{"--namespace=m", "--placeholder-image=i", "--prometheus-triggers"}, nil, []string{"--prometheus-address is not"}},
		"no Prometheus":       {[]string{"--namespace=m", "--placeholder-image=i", "--prometheus-secret-dir=/s"}, nil, []string{"--prometheus-address is not"}},
		"bad plugin pods":     {[]string{"--namespace=m", "--placeholder-image=i", "--keda-port=0", "--keda-require-client-certificate=false", "--plugin-pods=a==b==c"}, nil, []string{"--plugin-pods", "key=value"}},
		"a lease that lapses": {[]string{"--namespace=m", "--placeholder-image=i", "--leader-elect-renew-deadline=1m"}, nil, []string{"each must be longer than the next"}},
		"no kubeconfig":       {[]string{"--namespace=m", "--placeholder-image=i", "--kubeconfig=/nonexistent"}, nil, []string{"/nonexistent", "set --kubeconfig"}},
	} {
		t.Run(name, func(t *testing.T) {
			arguments := test.arguments
			if strings.Contains(strings.Join(arguments, " "), "--eks-endpoint") {
				arguments = append(arguments, "--kubeconfig="+unreachable(t))
			}
			for variable, value := range test.environment {
				t.Setenv(variable, value)
			}
			_, err := execute(t, arguments...)
			if err == nil {
				t.Fatal("it works")
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error is %q, want it to have %q", err, part)
				}
			}
		})
	}
}

// unreachable is the kubeconfig of an API server that serves nothing.
func unreachable(t *testing.T) string {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
	}))
	t.Cleanup(api.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n", api.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestAnAPIServerThatServesNothingIsRefused(t *testing.T) {
	_, err := execute(t, "--namespace=m", "--placeholder-image=i", "--kubeconfig="+unreachable(t), "--metrics-port=-1", "--healthcheck-port=-1")
	fixture.Sentence(t, err, "set up the controller", "check that the API server answers")
}

func TestTheEnvironmentSetsWhatTheCommandLineDoesNot(t *testing.T) {
	t.Setenv("NAMESPACE", "environment")
	t.Setenv("PLACEHOLDER_GRACE", "45s")
	t.Setenv("DISCOVER_NODE_GROUPS", "off")
	t.Setenv("LEADER_ELECT", "false")
	f := newFlags()
	own := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.addCluster(own)
	f.addScaleOut(own)
	if err := own.Parse([]string{"--namespace=line"}); err != nil {
		t.Fatal(err)
	}
	if err := settings.FromEnvironment(own, nil); err != nil {
		t.Fatal(err)
	}
	if f.namespace != "line" || f.placeholder.Grace != 45*time.Second || f.discovery.value != discoverOff || f.leaderElect {
		t.Errorf("got namespace %q, grace %s, discovery %s, leader election %v", f.namespace, f.placeholder.Grace, f.discovery.value, f.leaderElect)
	}
}

func TestTheCacheKeepsTheFieldsOfPodsThatDecisionsRead(t *testing.T) {
	pod := &corev1.Pod{
		// The owner decides whether the pod's node may end: see package pair.
		ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"a": "b"}, ManagedFields: []metav1.ManagedFieldsEntry{{}}, OwnerReferences: make([]metav1.OwnerReference, 1)},
		Spec: corev1.PodSpec{
			NodeSelector:   map[string]string{"c": "d"},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu"}},
			Volumes:        []corev1.Volume{{}},
			Containers: []corev1.Container{{
				Name: "c", Env: []corev1.EnvVar{{Name: "SECRET"}}, Command: []string{"run"},
				Ports:     []corev1.ContainerPort{{HostPort: 80}},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}},
			}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: "x"}}},
	}
	stripped, err := strip(stripPod)(pod)
	if err != nil {
		t.Fatal(err)
	}
	got := stripped.(*corev1.Pod)
	container := got.Spec.Containers[0]
	if got.ManagedFields != nil || got.Spec.Volumes != nil || container.Env != nil || container.Command != nil {
		t.Errorf("unused fields are kept: %+v", got)
	}
	if len(got.OwnerReferences) != 1 || got.Labels["a"] != "b" || got.Spec.NodeSelector["c"] != "d" || len(got.Spec.ResourceClaims) != 1 || len(got.Status.Conditions) != 1 ||
		container.Ports[0].HostPort != 80 || container.Resources.Requests.Cpu().Value() != 1 {
		t.Errorf("fields that decisions read are gone: %+v", got)
	}
	got.Status.Phase, got.Spec.NodeName = corev1.PodSucceeded, "n"
	ended, err := strip(stripPod)(got)
	if err != nil {
		t.Fatal(err)
	}
	if spec := ended.(*corev1.Pod).Spec; spec.NodeName != "n" || len(spec.Containers) != 0 {
		t.Errorf("an ended pod keeps %+v", spec)
	}
	if other, err := strip(stripPod)("no pod"); err != nil || other != "no pod" {
		t.Errorf("what is no pod becomes %v, %v", other, err)
	}
}

func TestOnlyMachinesWithGPUsAreDiscovered(t *testing.T) {
	for name, want := range map[string]bool{"p5.48xlarge": true, "g4ad.xlarge": false, "m5.large": false} {
		if got := hasGPUs(name); got != want {
			t.Errorf("%s has GPUs: %v, want %v", name, got, want)
		}
	}
}

func TestPauseWaitsForSIGTERM(t *testing.T) {
	received := make(chan os.Signal, 1)
	signal.Notify(received, syscall.SIGTERM) // a signal before the command listens must not end the tests
	defer signal.Stop(received)
	ended := make(chan error)
	go func() {
		_, err := execute(t, "pause")
		ended <- err
	}()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for sent := false; ; {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			if !sent {
				t.Error("it ends before the signal")
			}
			return
		case <-again.C:
			if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			<-received // a signal that arrives after this test would end the tests
			sent = true
		}
	}
}

func TestVersion(t *testing.T) {
	before := linked
	defer func() { linked = before }()
	linked = "v1.2.3"
	if output, err := execute(t, "version"); err != nil || output != "v1.2.3\n" {
		t.Errorf("got %q, %v", output, err)
	}
}
