//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// testKEDAQueue has a queue of fifty messages, five per replica, and two GPUs that no other test has. The
// ScaledObject is the example's, only faster.
func testKEDAQueue(t *testing.T) {
	t.Parallel()
	s := &scaleOut{scenario: newScenario(t, 2)}
	free := s.lastFree(2)
	s.createTemplate("last", s.claimFor(1, s.of(free[0])+" || "+s.of(free[1])))
	d := s.newScaled("queued", s.ending(s.podFromTemplate("", "last")))
	list := s.namespace
	content, err := os.ReadFile(filepath.Join(examplesDirectory, "queue", "scaledobject.yaml"))
	must(t, err, "read the example")
	object := string(content)
	for slow, fast := range map[string]string{"render": "queued", "redis.default:": "redis.keda.svc:", "listName: jobs": "listName: " + list, "cooldownPeriod: 300": "cooldownPeriod: 3", "pollingInterval: 30": "pollingInterval: 1",
		"stabilizationWindowSeconds: 300": "stabilizationWindowSeconds: 0", "periodSeconds: 60": "periodSeconds: 1"} {
		object = strings.ReplaceAll(object, slow, fast)
	}
	s.queue(list, 50)
	t.Cleanup(func() { s.queue(list, 0) })
	s.applyAsUser([]byte(object))
	t.Cleanup(d.unscale)
	d.expectReplicas(2)
	d.expectDecision("composite-metric", "1", 2)
	d.expectClaims(2)
	s.queue(list, 0)
	d.expectReplicas(0)
}

// lastFree returns the last GPUs without a claim: other claims get the first ones, and reservations leave these free.
func (s *scenario) lastFree(count int) (last []device) {
	s.Helper()
	eventually(s, startTimeout, fmt.Sprintf("%d GPUs are free", count), func(ctx context.Context) error {
		claims, err := s.client.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		taken := map[int64]bool{}
		for i := range claims.Items {
			if !s.usesNode(&claims.Items[i]) {
				continue
			}
			for _, result := range claims.Items[i].Status.Allocation.Devices.Results {
				if result.Driver == s.driver && result.Pool == s.node && !ptr.Deref(result.AdminAccess, false) {
					taken[describe(resourcev1.Device{Name: result.Device}).minor] = true
				}
			}
		}
		free := slices.DeleteFunc(slices.Clone(s.devices), func(d device) bool { return taken[d.minor] })
		if len(free) < count {
			return fmt.Errorf("%d are", len(free))
		}
		last = free[len(free)-count:]
		return nil
	})
	return last
}

// queue sets the length of a list in Redis.
func (s *scaleOut) queue(list string, length int) {
	s.Helper()
	body, err := json.Marshal(map[string]int{"length": length})
	must(s, err, "encode the length of list %s", list)
	request := s.client.CoreV1().RESTClient().Put().Namespace(kedaNamespace).Resource("services").
		Name("redis:8000").SubResource("proxy").Suffix("lists/" + list).Body(body)
	must(s, request.Do(context.Background()).Error(), "have list %s be %d long", list, length)
}
