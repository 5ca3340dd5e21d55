package aws

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/test/ekssim"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fleet/cloud"
)

// machines is a cloud of two groups: one has a node and a booting machine, the other has no capacity.
type machines struct {
	states []cloud.State
	// asked are the changes.
	asked []string
}

func newMachines() *machines {
	a100 := cloud.Group{
		Name: "a100", ScalingGroup: "eks-a100-0001", Max: 3, InstanceType: "p4d.24xlarge", CapacityType: "SPOT",
		Failure: &cloud.Failure{Code: "InsufficientInstanceCapacity", Message: "We currently do not have sufficient p4d.24xlarge capacity."},
	}
	h100 := cloud.Group{
		Name: "h100", ScalingGroup: "eks-h100-0002", Min: 1, Max: 5, InstanceType: "p5.48xlarge", Labels: map[string]string{"team": "one"},
		Taints:            []corev1.Taint{{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}},
		ScaleDownUnneeded: metav1.Duration{Duration: 5 * time.Second},
	}
	return &machines{states: []cloud.State{
		{Group: a100, Desired: 1, Failed: 1},
		{Group: h100, Desired: 2, Instances: []cloud.Instance{{ID: "i-00000000000000001", Node: "h100-one"}, {ID: "i-00000000000000002"}}},
	}}
}

func (m *machines) States() []cloud.State { return m.states }

func (m *machines) SetDesired(group string, desired int) error {
	for _, state := range m.states {
		if state.Name == group && (desired < state.Min || desired > state.Max) {
			return fmt.Errorf("set the size: %w", cloud.ErrSize)
		}
	}
	m.asked = append(m.asked, fmt.Sprintf("%s has to have %d machines", group, desired))
	return nil
}

func (m *machines) Terminate(_ context.Context, id string) error {
	if id != "i-00000000000000001" {
		return cloud.ErrNoInstance
	}
	m.asked = append(m.asked, id+" is terminated")
	return nil
}

// TestCalls has requests as AWS's SDK sends them for the autoscaler's AWS provider (recorded from
// autoscaling v1.62.2, ec2 v1.275.1 and eks v1.76.1 of aws-sdk-go-v2, which Cluster Autoscaler
// 1.37 has), and some that are wrong: a line with method and path, and one for each parameter.
func TestCalls(t *testing.T) {
	fixture.Scenarios(t, func(t *testing.T, script []fixture.Line) string {
		cloud := newMachines()
		handler := Handler(cloud, func() time.Time { return time.Date(2026, 10, 1, 12, 0, 0, 5e6, time.UTC) })
		var said strings.Builder
		for _, request := range requests(t, script) {
			answer := httptest.NewRecorder()
			handler.ServeHTTP(answer, request)
			fmt.Fprintln(&said, strings.TrimSpace(fmt.Sprint(answer.Code, " ", answer.Header().Get("X-Amzn-ErrorType"))))
			said.Write(answer.Body.Bytes())
		}
		for _, asked := range cloud.asked {
			said.WriteString(asked + "\n")
		}
		return said.String()
	})
}

func requests(t *testing.T, script []fixture.Line) []*http.Request {
	var all []*http.Request
	for i := 0; i < len(script); {
		method, path, _ := strings.Cut(script[i].Text, " ")
		form := url.Values{}
		for i++; i < len(script) && !strings.HasPrefix(script[i].Text, "POST ") && !strings.HasPrefix(script[i].Text, "GET "); i++ {
			key, value, _ := strings.Cut(script[i].Text, "=")
			form.Add(key, value)
		}
		all = append(all, signedRequest(t, method, path, form.Encode()))
	}
	return all
}

func signedRequest(t *testing.T, method, path, body string) *http.Request {
	request := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	service := strings.Split(path, "/")[2]
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("X-Amz-Date", "20261001T120000Z")
	request.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=simulated/20261001/sim-1/"+service+
		"/aws4_request, SignedHeaders=content-type;host;x-amz-date, Signature="+strings.Repeat("0", 64))
	return request
}

func TestCallsThatAreRefused(t *testing.T) {
	const describe = "Action=DescribeAutoScalingGroups&Version=2011-01-01"
	for name, test := range map[string]struct {
		path, body string
		spoil      func(*http.Request)
		status     int
		want       string
	}{
		"not signed": {"/aws/autoscaling/", describe, func(r *http.Request) { r.Header.Del("Authorization") }, 403, "MissingAuthenticationToken"},
		"signed for another": {"/aws/ec2/", "Action=DescribeInstanceTypes&Version=2016-11-15", func(r *http.Request) {
			r.Header.Set("Authorization", strings.ReplaceAll(r.Header.Get("Authorization"), "/ec2/", "/eks/"))
		}, 403, "not signed for ec2"},
		"without a date":        {"/aws/autoscaling/", describe, func(r *http.Request) { r.Header.Del("X-Amz-Date") }, 403, "MissingAuthenticationToken"},
		"in the URL":            {"/aws/autoscaling/?MaxRecords=1", describe, nil, 400, "in its URL"},
		"too long":              {"/aws/autoscaling/", describe + "&X=" + strings.Repeat("x", ekssim.MaxBody), nil, 400, "too large"},
		"no form":               {"/aws/autoscaling/", "%zz", nil, 400, "MalformedQueryString"},
		"EKS without a cluster": {"/aws/eks/clusters/another/node-groups/h100", "", func(r *http.Request) { r.Method = http.MethodGet }, 404, "No cluster found"},
		"EKS that changes":      {"/aws/eks/clusters/fleet/node-groups/h100/update-config", "{}", nil, 405, ""},
	} {
		t.Run(name, func(t *testing.T) {
			request := signedRequest(t, http.MethodPost, test.path, test.body)
			if test.spoil != nil {
				test.spoil(request)
			}
			answer := httptest.NewRecorder()
			Handler(newMachines(), time.Now).ServeHTTP(answer, request)
			if answer.Code != test.status || !strings.Contains(answer.Body.String(), test.want) {
				t.Errorf("answered %d %s, want %d with %q", answer.Code, answer.Body, test.status, test.want)
			}
		})
	}
}
