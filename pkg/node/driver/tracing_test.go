package driver

import (
	"slices"
	"testing"

	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"google.golang.org/grpc/metadata"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/tracing"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
	"github.com/mica-gpu/mica/test/fixture/collector"
)

// A trace goes from kubelet's call by the claim to the steps on the GPU, and to what is published.
func TestAClaimIsTraced(t *testing.T) {
	sent := collector.New(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", sent.Endpoint)
	stopTracing, err := tracing.Start(t.Context(), "plugin", "v1", "k8s.node.name", fixture.NodeName)
	must(t, err)
	defer stopTracing()
	claim := fixture.Claim("one", fixture.Result("a", partition0))
	bad := fixture.Claim("bad", fixture.Result("a", "gpu-99"))
	api, h := apiserver.New(claim, bad), newHardware(t)
	o := options(t, api, h)
	_, k, stop := serving(t, o)

	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+trace+"-"+parent+"-01")
	for _, c := range []*resourceapi.ResourceClaim{claim, bad} {
		_, err := drapb.NewDRAPluginClient(k.conn).NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{reference(c)}})
		must(t, err)
	}
	k.unprepare(claim)
	stop()
	stopTracing()

	spans := sent.Spans()
	find := func(name, claim string) collector.Span {
		t.Helper()
		i := slices.IndexFunc(spans, func(s collector.Span) bool {
			return s.Name == name && s.Attributes["k8s.resourceclaim.name"] == claim
		})
		if i < 0 {
			t.Fatalf("there is no span %q of the claim %q in %+v", name, claim, spans)
		}
		return spans[i]
	}
	prepared := find("prepare claim", "one")
	if prepared.Trace != trace || prepared.Parent != parent || prepared.Error != "" {
		t.Errorf("it is no part of kubelet's trace: %+v", prepared)
	}
	for name, want := range map[string]string{
		"k8s.namespace.name": fixture.Namespace, "k8s.resourceclaim.uid": string(claim.UID), "k8s.node.name": fixture.NodeName, "mica.devices": "1",
	} {
		if got := prepared.Attributes[name]; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for _, part := range []string{"lock-claim", "lock-gpus", "intent", "enableMIG", "makePartition", "mig", "cdi", "record"} {
		if got := find(part, ""); got.Parent != prepared.ID {
			t.Errorf("%s is no part of the claim: %+v", part, got)
		}
	}
	if got := find("makePartition", "").Attributes["mica.gpu.uuid"]; got != h.node.GPUs[0].UUID {
		t.Errorf("the GPU of the step is %q", got)
	}
	if got := find("prepare claim", "bad"); got.Error == "" || got.Trace != trace {
		t.Errorf("what failed is %+v", got)
	}
	unprepared := find("unprepare claim", "one")
	if got := find("undo makePartition", ""); got.Parent != unprepared.ID || unprepared.Trace == trace {
		t.Errorf("unprepared as %+v, undone as %+v", unprepared, got)
	}
	if got := find("publish first slices", ""); got.Attributes["mica.devices"] == "" || got.Attributes["mica.slices"] == "" || got.Attributes["mica.devices"] == "0" {
		t.Errorf("published as %+v", got)
	}
}
