package keda

import (
	"cmp"
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

var certificateExpiry = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "mica_keda_certificate_expiry_timestamp_seconds",
	Help: "When the certificate expires that KEDA is served with (use server), and when the last CA does that certificates of clients are verified with (use clients).",
}, []string{"use"})

// watchExpiry tells when certificates expire: when they were read, and when it has come to that,
// each hour from then on.
// A server with an expired certificate goes on, since it is its clients that refuse it.
func (c *certificates) watchExpiry(ctx context.Context, changed <-chan struct{}) {
	defer certificateExpiry.Reset() // who does not serve has no certificate that matters
	for {
		next := c.clock.NewTimer(cmp.Or(c.tellExpiry(ctx), time.Hour))
		select {
		case <-next.C():
		case <-changed:
		case <-ctx.Done():
			next.Stop()
			return
		}
		next.Stop()
	}
}

// tellExpiry gives the time until the next certificate expires; 0 where all have.
func (c *certificates) tellExpiry(ctx context.Context) time.Duration {
	chain, _ := c.server.CurrentCertKeyContent()
	next := c.tell(ctx, "server", c.files.Certificate, earliest(chain))
	if c.clients == nil {
		return next
	}
	other := c.tell(ctx, "clients", c.files.ClientCA, latest(c.clients.CurrentCABundleContent()))
	if next == 0 || other != 0 && other < next {
		return other
	}
	return next
}

func (c *certificates) tell(ctx context.Context, use, file string, expires time.Time) time.Duration {
	if expires.IsZero() {
		certificateExpiry.DeleteLabelValues(use)
		return 0
	}
	certificateExpiry.WithLabelValues(use).Set(float64(expires.Unix()))
	left := expires.Sub(c.clock.Now())
	if left <= 0 {
		klog.FromContext(ctx).Error(nil, "A certificate has expired, so KEDA cannot connect: renew the mounted Secret", "file", file, "expired", expires)
		return 0
	}
	klog.FromContext(ctx).Info("Read a certificate", "file", file, "expires", expires)
	return left
}

// earliest is of a chain, which is broken when one of it expires.
func earliest(chain []byte) time.Time {
	return pick(chain, time.Time.Before)
}

// latest is of a bundle, which has the old CA and the new one while they are replaced.
func latest(bundle []byte) time.Time {
	return pick(bundle, time.Time.After)
}

// pick is zero where an issuer in the chain does not parse, with which TLS itself puts up.
func pick(pem []byte, better func(time.Time, time.Time) bool) time.Time {
	certificates, err := cert.ParseCertsPEM(pem)
	if err != nil {
		return time.Time{}
	}
	best := certificates[0]
	for _, c := range certificates[1:] {
		if better(c.NotAfter, best.NotAfter) {
			best = c
		}
	}
	return best.NotAfter
}
