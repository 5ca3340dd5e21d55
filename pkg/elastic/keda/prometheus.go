package keda

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"time"

	"github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/transport"
	"k8s.io/utils/clock"

	"github.com/mica-gpu/mica/pkg/excerpt"
)

// PrometheusOptions configure the server to query. Triggers cannot choose one: the controller reaches
// servers that their authors cannot.
type PrometheusOptions struct {
	// Address is the URL of the HTTP API, such as http://prometheus.monitoring:9090, without credentials.
	Address string
	// TokenFile has a bearer token; empty: none. CAFile verifies the server's certificate; empty: the
	// system's CAs. Changed files are read again.
	TokenFile, CAFile string
	// Timeout bounds one query; 0: 3 s.
	Timeout time.Duration
	Clock   clock.PassiveClock
}

const (
	defaultTimeout = 3 * time.Second
	// fresh is how long an answer or error is reused: KEDA asks for value and activity one after the other.
	fresh = 5 * time.Second
	// mostQueries bounds remembered answers, mostAtOnce concurrent queries of all namespaces.
	mostQueries = 4096
	mostAtOnce  = 32
	// mostAnswer bounds an answer in bytes: one number needs little more than its labels.
	mostAnswer = 1 << 20
)

// prometheusServer queries a server over HTTP.
type prometheusServer struct {
	api     promv1.API
	address string
	timeout time.Duration
	clock   clock.PassiveClock
	asking  singleflight.Group
	answers *cache.LRUExpireCache
	slots   *querySlots
}

// NewPrometheus returns an error if the address or a file is unusable. It does not connect yet.
func NewPrometheus(o PrometheusOptions) (Prometheus, error) {
	if err := checkAddress(o.Address); err != nil {
		return nil, err
	}
	through, err := transport.New(&transport.Config{
		UserAgent:       "mica-controller",
		TLS:             transport.TLSConfig{CAFile: o.CAFile, ReloadCAFiles: o.CAFile != ""},
		BearerTokenFile: o.TokenFile,
	})
	if err != nil {
		return nil, fmt.Errorf("ask Prometheus at %s: %w", o.Address, err)
	}
	client, err := api.NewClient(api.Config{Address: o.Address, Client: &http.Client{
		Transport: bounded{through},
		// A redirect would carry the token to another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}})
	if err != nil {
		return nil, fmt.Errorf("ask Prometheus at %s: %w", o.Address, err)
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	return &prometheusServer{
		api: promv1.NewAPI(client), address: o.Address, timeout: o.Timeout, clock: o.Clock,
		answers: cache.NewLRUExpireCacheWithClock(mostQueries, o.Clock),
		slots:   newQuerySlots(mostAtOnce),
	}, nil
}

// checkAddress returns errors without the address, which may have credentials in it.
func checkAddress(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "":
		return errors.New("the address of Prometheus cannot be used: give a URL such as http://prometheus.monitoring:9090")
	case u.User != nil:
		return fmt.Errorf("the address of Prometheus at %s has credentials: give them as a file with a bearer token", u.Host)
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("the address of Prometheus at %s has a query: leave out what follows the path", u.Host)
	}
	return nil
}

// queryResponse is the result of a query.
type queryResponse struct {
	value float64
	err   error
	// bug is the value of a panic. singleflight would end the process with it; get panics in the
	// goroutines of the callers instead, which recover.
	bug any
}

func (a queryResponse) get() (float64, error) {
	if a.bug != nil {
		panic(a.bug)
	}
	return a.value, a.err
}

// Query implements Prometheus. Concurrent callers share a query, and its answer or error is reused for
// some seconds, so that a slow server gets no more queries. Answers are kept by the hash of the query,
// which may be long. Namespaces share none, because each waits for slots of its own.
func (p *prometheusServer) Query(ctx context.Context, namespace, query string) (float64, error) {
	key := sha256.Sum256([]byte(namespace + "\x00" + query))
	if known, ok := p.answers.Get(key); ok {
		return known.(queryResponse).get()
	}
	answered := p.asking.DoChan(string(key[:]), func() (any, error) {
		// The first caller may leave while others wait.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.timeout)
		defer cancel()
		a := p.get(ctx, namespace, query)
		p.answers.Add(key, a, fresh)
		return a, nil
	})
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case result := <-answered:
		return result.Val.(queryResponse).get()
	}
}

func (p *prometheusServer) get(ctx context.Context, namespace, query string) (a queryResponse) {
	defer func() {
		if bug := recover(); bug != nil {
			a = queryResponse{bug: fmt.Sprintf("%v, in\n%s", bug, debug.Stack())}
		}
	}()
	value, err := p.ask(ctx, namespace, query)
	if err != nil {
		err = fmt.Errorf("query %s of Prometheus at %s: %w", quoted(query), p.address, err)
	}
	return queryResponse{value: value, err: err}
}

func (p *prometheusServer) ask(ctx context.Context, namespace, query string) (float64, error) {
	if !p.slots.take(ctx, namespace) {
		return 0, unavailable(fmt.Errorf("other queries, most of them of this namespace, were not answered within %s: make them cheaper, and check the load of Prometheus", p.timeout))
	}
	defer p.slots.give(namespace)
	value, _, err := p.api.Query(ctx, query, p.clock.Now())
	if err != nil {
		return 0, p.judge(ctx, err)
	}
	return number(value)
}

// number returns the only number of an answer. Errors contain no labels: the author of the query may
// lack the right to read the series.
func number(value model.Value) (float64, error) {
	var n float64
	switch v := value.(type) {
	case *model.Scalar:
		n = float64(v.Value)
	case model.Vector:
		switch {
		case len(v) == 0:
			return 0, unavailable(ErrNoData)
		case slices.Contains(v, nil):
			return 0, refused(&promv1.Error{Type: promv1.ErrBadResponse, Msg: "it has a series without a value"})
		case len(v) > 1:
			return 0, invalid(fmt.Errorf("the query gives %d series, where one number is needed: aggregate them, for example by sum()", len(v)))
		case v[0].Histogram != nil:
			return 0, invalid(errors.New("the query gives a histogram, where one number is needed: take a quantile by histogram_quantile()"))
		}
		n = float64(v[0].Value)
	default:
		return 0, invalid(fmt.Errorf("the query gives a %s, where one number is needed: ask for an instant vector", value.Type()))
	}
	if math.IsNaN(n) || math.IsInf(n, 0) {
		return 0, unavailable(fmt.Errorf("the query gives %v, not a finite number: check that it does not divide by zero", n))
	}
	return n, nil
}

// judge explains the error of a query.
func (p *prometheusServer) judge(ctx context.Context, err error) error {
	if answered, is := errors.AsType[*promv1.Error](err); is {
		return refused(answered)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return unavailable(fmt.Errorf("there was no answer within %s: check that it runs, and that the query is not too expensive", p.timeout))
	}
	if _, is := errors.AsType[*http.MaxBytesError](err); is {
		return invalid(fmt.Errorf("the answer has more than %d MiB: aggregate it to one number, for example by sum()", mostAnswer>>20))
	}
	// The text of a url.Error repeats the address and the query.
	if request, is := errors.AsType[*url.Error](err); is {
		err = request.Err
	}
	return unavailable(fmt.Errorf("it cannot be reached: %w", err))
}

// refused explains an error that the server returned. It repeats the server's text only for queries that
// do not parse: other texts quote the labels of series, such as those of a failed match.
func refused(returned *promv1.Error) error {
	errorType, parse := returned.Type, returned.Msg
	// The client does not read the body of a status that a proxy may have set.
	var answer struct {
		ErrorType promv1.ErrorType `json:"errorType"`
		Error     string           `json:"error"`
	}
	if json.Unmarshal([]byte(returned.Detail), &answer) == nil && answer.ErrorType != "" {
		errorType, parse = answer.ErrorType, answer.Error
	}
	text := excerpt.Of(returned.Msg, 300) // by the client, such as the status
	switch errorType {
	case promv1.ErrBadData:
		return invalid(fmt.Errorf("it cannot read the query: %s", excerpt.Of(parse, 300)))
	case promv1.ErrExec:
		return invalid(errors.New("it cannot execute the query, for example because many series match many: run it in Prometheus to see why"))
	case promv1.ErrTimeout, promv1.ErrCanceled:
		return unavailable(errors.New("the query timed out: make it cheaper, for example by a recording rule"))
	case promv1.ErrClient:
		return unavailable(fmt.Errorf("it refused (%s): check the address and the controller's token", text))
	case promv1.ErrBadResponse:
		return unavailable(fmt.Errorf("its answer is not Prometheus' (%s): check that the address is that of its HTTP API", text))
	case promv1.ErrServer:
		return unavailable(fmt.Errorf("it failed (%s)", text))
	}
	return unavailable(fmt.Errorf("it failed (%s): see its log", excerpt.Of(string(errorType), 40)))
}

// bounded ends answers that are too long.
type bounded struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(request)
	if err == nil {
		response.Body = http.MaxBytesReader(nil, response.Body, mostAnswer)
	}
	return response, err
}
