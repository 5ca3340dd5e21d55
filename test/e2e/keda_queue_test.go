//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
)

// testKEDAQueue has a queue of fifty messages, of which a replica takes five, and two GPUs: those that
// the other tests would take last. The ScaledObject is what the command prints, only faster.
func testKEDAQueue(t *testing.T) {
	t.Parallel()
	s := &scaleOut{scenario: newScenario(t, 2)}
	claim := s.claimFor(1)
	claim.Devices.Requests[0].Exactly.Selectors = append(claim.Devices.Requests[0].Exactly.Selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{
		Expression: fmt.Sprintf("device.attributes['gpu.nvidia.com'].index >= %d", under.gpus.all-2),
	}})
	s.createTemplate("last", claim)
	d := s.newScaled("queued", s.ending(s.podFromTemplate("", "last")))
	list := s.namespace
	object := string(s.printScaledObject("deployment/queued --profile batch --min 0 --max 5 --queue redis --queue-set address=redis.keda.svc:6379 --queue-set listName=" + list + " --queue-messages 5"))
	for slow, fast := range map[string]string{"cooldownPeriod: 300": "cooldownPeriod: 3", "pollingInterval: 30": "pollingInterval: 1",
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

// queue has a list of Redis be so long.
func (s *scaleOut) queue(list string, length int) {
	s.Helper()
	body, err := json.Marshal(map[string]int{"length": length})
	must(s, err, "encode the length of list %s", list)
	request := s.client.CoreV1().RESTClient().Put().Namespace(kedaNamespace).Resource("services").
		Name("redis:8000").SubResource("proxy").Suffix("lists/" + list).Body(body)
	must(s, request.Do(context.Background()).Error(), "have list %s be %d long", list, length)
}
