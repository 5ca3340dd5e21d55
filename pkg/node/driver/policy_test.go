package driver

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

// published are the devices that the API server has of GPU 0, withdrawn ones with
// a minus sign.
func published(t testing.TB, api *apiserver.Server) []string {
	t.Helper()
	var names []string
	for _, slice := range api.Slices(t) {
		for _, device := range slice.Spec.Devices {
			if len(device.Taints) > 0 {
				device.Name = "-" + device.Name
			}
			if strings.Contains(device.Name, "gpu-0") && !strings.Contains(device.Name, "mig") {
				names = append(names, device.Name)
			}
		}
	}
	slices.Sort(names)
	return names
}

func eventually(t *testing.T, api *apiserver.Server, want ...string) {
	t.Helper()
	fixture.Eventually(t, fmt.Sprintf("the devices %q", want), func() error {
		if got := published(t, api); !slices.Equal(got, want) {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
}

func TestAPolicyIsFollowedWithoutARestart(t *testing.T) {
	claim := fixture.Claim("one", fixture.Result("a", "gpu-0"))
	api, policies := apiserver.New(claim), apiserver.NewPolicies()
	policies.Put(t, "default", "{priority: -1000, shapes: {whole: {}, timeSlice: {replicas: 4}}}")
	o := options(t, api, newHardware(t))
	o.Policies = policies
	_, k, _ := serving(t, o)
	eventually(t, api, "gpu-0", "gpu-0-timeslice")
	k.prepared(claim)

	policies.Put(t, "train", "{nodeSelector: {matchLabels: {pool: train}}, shapes: {mig: {}}}")
	node, err := api.CoreV1().Nodes().Get(t.Context(), fixture.NodeName, metav1.GetOptions{})
	must(t, err)
	node.Labels = map[string]string{"pool": "train"}
	_, err = api.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	must(t, err)
	eventually(t, api, "-gpu-0", "-gpu-0-timeslice")
	says(t, policies, "train", 1, "")
	// What is withdrawn can be prepared: its claim was on its way.
	k.unprepare(claim)
	k.prepared(claim)

	policies.Remove("train")
	eventually(t, api, "gpu-0", "gpu-0-timeslice")
}

// says waits until the node says that of its policy.
func says(t *testing.T, policies *apiserver.Policies, name string, generation int64, message string) {
	t.Helper()
	want := v1alpha1.NodePolicy{Name: name, UID: "uid-" + name, ObservedGeneration: generation, Message: message}
	fixture.Eventually(t, "what the node says of its policy", func() error {
		if said := policies.Node(fixture.NodeName); said == nil || said.Policy == nil || *said.Policy != want {
			return fmt.Errorf("got %+v, want %+v", said, want)
		}
		return nil
	})
}
