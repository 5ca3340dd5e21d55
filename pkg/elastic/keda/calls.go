package keda

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/mica-gpu/mica/api/externalscaler"
)

var (
	requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "mica_keda_requests_total",
		Help: "Requests of KEDA that were answered and streams that ended, by method and gRPC code.",
	}, []string{"method", "code"})
	requestSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "mica_keda_request_duration_seconds",
		Help:    "Time that an answer to KEDA took, by method. Streams are not in it.",
		Buckets: prometheus.ExponentialBuckets(0.00025, 2, 17),
	}, []string{"method"})
)

// Metrics returns the metrics of a process that serves KEDA.
func Metrics() []prometheus.Collector {
	return []prometheus.Collector{requests, requestSeconds}
}

// calls counts requests and logs those that fail.
type calls struct {
	logger   klog.Logger
	reported *reportedErrors
}

// run executes a request or serves a stream, counts it, logs its error once while the error lasts, and
// returns the error with a gRPC code. It adds the logger to the context, which gRPC's own context
// lacks. A stream calls answered after each message.
func (c *calls) run(ctx context.Context, method string, ref *externalscaler.ScaledObjectRef, work func(ctx context.Context, answered func()) error) error {
	logger := c.logger.WithValues("method", method, "scaledObject", klog.KRef(ref.GetNamespace(), ref.GetName()))
	ctx = klog.NewContext(ctx, logger)
	key := fmt.Sprintf("%s %x", method, identify(ref))
	answered := func() {
		if c.reported.cleared(key) {
			logger.Info("Answered KEDA again after errors")
		}
	}
	err := guard(ctx, ref, func() error { return work(ctx, answered) })
	if err != nil && errors.Is(ctx.Err(), context.Canceled) {
		err = ctx.Err() // whatever else went wrong, the client has gone
	}
	answer := onTheWire(err)
	code := status.Code(answer)
	requests.WithLabelValues(method, code.String()).Inc()
	switch {
	case code == codes.OK:
		answered()
	case code == codes.Canceled:
	case c.reported.isNew(key, err.Error()):
		logger.Error(err, "Answered KEDA with an error")
	}
	return answer
}

// guard turns a panic into an error, so that a bug in one trigger does not end the controller.
func guard(ctx context.Context, ref *externalscaler.ScaledObjectRef, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(nil, "Bug: a request of KEDA panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "the controller has a bug that this request hits: see its log")
		}
	}()
	if ref == nil {
		return invalid(errors.New("the request names no ScaledObject: check that it comes from KEDA"))
	}
	return do()
}

// reportedErrors remembers hashes of logged errors; a client chooses how long their texts are.
type reportedErrors struct {
	errors *cache.LRUExpireCache
	seed   maphash.Seed
}

// An error counts as the same while it recurs within this time, which is longer than KEDA's back-off
// after a broken stream and than a usual polling interval.
const errorLasts = 10 * time.Minute

func newReportedErrors(c clock.PassiveClock) *reportedErrors {
	return &reportedErrors{errors: cache.NewLRUExpireCacheWithClock(4096, c), seed: maphash.MakeSeed()}
}

// isNew reports whether the text is new for the key, and remembers it.
func (t *reportedErrors) isNew(key, text string) bool {
	hash := maphash.String(t.seed, text)
	before, has := t.errors.Get(maphash.String(t.seed, key))
	t.errors.Add(maphash.String(t.seed, key), hash, errorLasts)
	return !has || before != hash
}

// cleared reports whether the key had an error, and forgets it.
func (t *reportedErrors) cleared(key string) bool {
	_, had := t.errors.Get(maphash.String(t.seed, key))
	t.errors.Remove(maphash.String(t.seed, key))
	return had
}
