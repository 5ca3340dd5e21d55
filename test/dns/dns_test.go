package main

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

func slice(name, service string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "mica", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   endpoints,
	}
}

func endpoint(ready *bool, addresses ...string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: addresses, Conditions: discoveryv1.EndpointConditions{Ready: ready}}
}

// TestGoFindsServices asks as a program in a pod does, with Go's own resolver.
func TestGoFindsServices(t *testing.T) {
	client := fake.NewClientset(
		slice("a", "controller", endpoint(ptr.To(true), "10.94.0.7"), endpoint(ptr.To(false), "10.94.0.8")),
		slice("b", "controller", endpoint(nil, "10.94.0.9")),
		slice("c", "starting", endpoint(ptr.To(false), "10.94.0.10")),
	)
	known, err := watchEndpoints(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	resolver := resolverOf(t, known.find)
	for _, test := range []struct {
		behaviour, name string
		want            []string
	}{
		{"ready endpoints of all slices, and those that do not say", "controller.mica.svc.cluster.local.", []string{"10.94.0.7", "10.94.0.9"}},
		{"case does not matter", "Controller.Mica.SVC.cluster.local.", []string{"10.94.0.7", "10.94.0.9"}},
		{"a Service that nothing is ready of has no address", "starting.mica.svc.cluster.local.", nil},
		{"another namespace", "controller.keda.svc.cluster.local.", nil},
		{"a name of a pod behind a Service", "one.controller.mica.svc.cluster.local.", nil},
		{"a name outside", "kubernetes.io.", nil},
	} {
		t.Run(test.behaviour, func(t *testing.T) {
			addresses, err := resolver.LookupHost(t.Context(), test.name)
			slices.Sort(addresses)
			if !slices.Equal(addresses, test.want) {
				t.Errorf("found %v, %v, want %v", addresses, err, test.want)
			}
			if (err != nil) != (test.want == nil) {
				t.Errorf("error %v", err)
			}
		})
	}
}

// resolverOf serves for the time of the test.
func resolverOf(t *testing.T, find finder) *net.Resolver {
	t.Helper()
	connection, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serve(ctx, connection, find) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "udp", connection.LocalAddr().String())
	}}
}

func TestWhatIsNoQueryIsNotAnswered(t *testing.T) {
	never := func(string, string) ([]netip.Addr, bool) {
		t.Error("it looks for a Service")
		return nil, false
	}
	for _, query := range [][]byte{nil, []byte("hello"), make([]byte, 12)} {
		if reply, err := answer(query, never); err == nil {
			t.Errorf("%q is answered with %q", query, reply)
		}
	}
}
