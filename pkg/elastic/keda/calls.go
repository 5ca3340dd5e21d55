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

// Metrics are what a process that serves KEDA counts.
func Metrics() []prometheus.Collector {
	return []prometheus.Collector{requests, requestSeconds, cappedTriggers, certificateExpiry}
}

// calls tells of requests, in metrics and, where they fail, in the log.
type calls struct {
	logger klog.Logger
	told   *told
}

func newCalls(c clock.PassiveClock, logger klog.Logger) *calls {
	return &calls{logger: logger, told: newTold(c)}
}

// run answers a request, or serves a stream, for which work says when it has answered. It gives
// work the logger, which gRPC's own context lacks. It counts the call, tells of its error once
// while that lasts, and gives it its code.
func (c *calls) run(ctx context.Context, method string, ref *externalscaler.ScaledObjectRef, work func(ctx context.Context, answered func()) error) error {
	logger := c.logger.WithValues("method", method, "scaledObject", klog.KRef(ref.GetNamespace(), ref.GetName()))
	ctx = klog.NewContext(ctx, logger)
	key := keyOf(method, ref)
	answered := func() {
		if c.told.over(key) {
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
	case c.told.news(key, err.Error()):
		logger.Error(err, "Answered KEDA with an error")
	}
	return answer
}

// keyOf is of one trigger: a ScaledObject has several, which KEDA does not number for us. A map is
// printed with its keys in order.
func keyOf(method string, ref *externalscaler.ScaledObjectRef) string {
	return fmt.Sprint(method, " ", ref.GetNamespace(), "/", ref.GetName(), ref.GetScalerMetadata())
}

// guard turns a panic into an error: one trigger's bug is not to end the controller.
func guard(ctx context.Context, ref *externalscaler.ScaledObjectRef, do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			klog.FromContext(ctx).Error(nil, "Bug: a request of KEDA panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "the controller has a bug that this request meets: its log says where")
		}
	}()
	if ref == nil {
		return invalid(errors.New("the request names no ScaledObject: see that it comes from KEDA"))
	}
	return do()
}

// told has the errors that the log has, as hashes: a client chooses how long their words are.
type told struct {
	errors *cache.LRUExpireCache
	seed   maphash.Seed
}

// An error lasts while it is met again within this time, which is longer than KEDA waits after
// a broken stream and than a usual polling interval.
const errorLasts = 10 * time.Minute

func newTold(c clock.PassiveClock) *told {
	return &told{errors: cache.NewLRUExpireCacheWithClock(4096, c), seed: maphash.MakeSeed()}
}

// news says whether the text is not told yet.
func (t *told) news(key, text string) bool {
	hash := maphash.String(t.seed, text)
	before, has := t.errors.Get(maphash.String(t.seed, key))
	t.errors.Add(maphash.String(t.seed, key), hash, errorLasts)
	return !has || before != hash
}

// over says whether there was an error.
func (t *told) over(key string) bool {
	_, had := t.errors.Get(maphash.String(t.seed, key))
	t.errors.Remove(maphash.String(t.seed, key))
	return had
}
