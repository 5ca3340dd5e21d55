package keda

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// PrometheusOptions say whom to ask. Triggers cannot: the controller reaches what their authors
// may not.
type PrometheusOptions struct {
	// Address is that of the HTTP API, such as http://prometheus.monitoring:9090, without
	// credentials.
	Address string
	// TokenFile has a bearer token, CAFile the authorities that sign the server's certificate.
	// Both are read again when they change; empty is none, and the system's.
	TokenFile, CAFile string
	// Timeout is for one query; 0: 3 s.
	Timeout time.Duration
	Clock   clock.PassiveClock
}

const (
	defaultTimeout = 3 * time.Second
	// fresh is how long an answer stands: KEDA asks for value and activity one after the other.
	fresh = 5 * time.Second
	// mostQueries are remembered, and mostAtOnce are asked at a time, of all namespaces.
	mostQueries = 4096
	mostAtOnce  = 32
	// mostAnswer is in bytes: one number needs little more than its labels.
	mostAnswer = 1 << 20
)

// prometheusServer is one that is asked over HTTP.
type prometheusServer struct {
	api     promv1.API
	address string
	timeout time.Duration
	clock   clock.PassiveClock
	asking  singleflight.Group
	answers *cache.LRUExpireCache
	slots   *querySlots
}

// NewPrometheus is an error where the address or a file cannot be read. It does not connect yet.
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
		// A server that sends elsewhere would be sent the token to.
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

// checkAddress does not repeat an address that may have credentials in it.
func checkAddress(address string) error {
	u, err := url.Parse(address)
	switch {
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "":
		return errors.New("the address of Prometheus cannot be used: it is to be a URL such as http://prometheus.monitoring:9090")
	case u.User != nil:
		return fmt.Errorf("the address of Prometheus at %s has credentials in it: give them as a file with a bearer token", u.Host)
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("the address of Prometheus at %s has a query in it: leave out what follows the path", u.Host)
	}
	return nil
}

// queryResponse is what became of a query.
type queryResponse struct {
	value float64
	err   error
	// bug is with what the asking panicked: nothing recovers in the goroutine of singleflight
	// it, so those who wait for the answer get it.
	bug any
}

func (a queryResponse) get() (float64, error) {
	if a.bug != nil {
		panic(a.bug)
	}
	return a.value, a.err
}

// Query implements Prometheus. Who asks the same at the same time waits for the same answer, and
// an answer stands for some seconds, also one that is an error: a server that is slow is not
// asked more often for it. Queries are remembered by their hashes: they may be long. No answer is for
// two namespaces, because one may have waited for its slots.
func (p *prometheusServer) Query(ctx context.Context, namespace, query string) (float64, error) {
	key := sha256.Sum256([]byte(namespace + "\x00" + query))
	if known, ok := p.answers.Get(key); ok {
		return known.(queryResponse).get()
	}
	asked := p.asking.DoChan(string(key[:]), func() (any, error) {
		// Who has asked first may go while others wait.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.timeout)
		defer cancel()
		a := p.get(ctx, namespace, query)
		p.answers.Add(key, a, fresh)
		return a, nil
	})
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case result := <-asked:
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
		return 0, unavailable(fmt.Errorf("other queries, most of them of this namespace, were not answered within %s: make them cheaper, and see to the load of Prometheus", p.timeout))
	}
	defer p.slots.give(namespace)
	value, _, err := p.api.Query(ctx, query, p.clock.Now())
	if err != nil {
		return 0, p.judge(ctx, err)
	}
	return number(value)
}

// number is the one that an answer has. Labels are in no error: the series may be those of others,
// which the author of the query cannot read.
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
			return 0, invalid(fmt.Errorf("the query gives %d series, where one number is needed: aggregate them, by sum() for one", len(v)))
		case v[0].Histogram != nil:
			return 0, invalid(errors.New("the query gives a histogram, where one number is needed: take a quantile of it, by histogram_quantile()"))
		}
		n = float64(v[0].Value)
	default:
		return 0, invalid(fmt.Errorf("the query gives a %s, where one number is needed: ask for an instant vector", value.Type()))
	}
	if math.IsNaN(n) || math.IsInf(n, 0) {
		return 0, unavailable(fmt.Errorf("the query gives %v, not a finite number: see that it does not divide by zero", n))
	}
	return n, nil
}

// judge makes a sentence of what a query has come to.
func (p *prometheusServer) judge(ctx context.Context, err error) error {
	var told *promv1.Error
	if errors.As(err, &told) {
		return refused(told)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return unavailable(fmt.Errorf("there was no answer within %s: see whether it runs, and whether the query is too expensive", p.timeout))
	}
	if errors.Is(err, errTooLong) {
		return invalid(fmt.Errorf("%w: aggregate, by sum() for one, so that it is one number", errTooLong))
	}
	// Of an error of the connection the URL is known, and its text is that of the query again.
	var request *url.Error
	if errors.As(err, &request) {
		err = request.Err
	}
	return unavailable(fmt.Errorf("it cannot be reached: %w", err))
}

// refused makes a sentence of what the server said. Its own words are repeated only where they are
// about the text of the query: others quote the labels of series, as those of a matching that fails do.
func refused(told *promv1.Error) error {
	errorType, parse := told.Type, told.Msg
	// The client leaves unread what comes with a status that a proxy may have set as well.
	var answer struct {
		ErrorType promv1.ErrorType `json:"errorType"`
		Error     string           `json:"error"`
	}
	if json.Unmarshal([]byte(told.Detail), &answer) == nil && answer.ErrorType != "" {
		errorType, parse = answer.ErrorType, answer.Error
	}
	said := excerpt.Of(told.Msg, 300) // the client's words, as of the status
	switch errorType {
	case promv1.ErrBadData:
		return invalid(fmt.Errorf("it cannot read the query: %s", excerpt.Of(parse, 300)))
	case promv1.ErrExec:
		return invalid(errors.New("it cannot carry out the query, as when many series match many: try it in Prometheus, which says why"))
	case promv1.ErrTimeout, promv1.ErrCanceled:
		return unavailable(errors.New("it gave up: make the query cheaper, by a recording rule for one"))
	case promv1.ErrClient:
		return unavailable(fmt.Errorf("it refused (%s): see the address, and the token that the controller has for it", said))
	case promv1.ErrBadResponse:
		return unavailable(fmt.Errorf("its answer is not one of Prometheus (%s): see that the address is that of its HTTP API", said))
	case promv1.ErrServer:
		return unavailable(fmt.Errorf("it failed (%s)", said))
	}
	return unavailable(fmt.Errorf("it failed (%s): see its log", excerpt.Of(string(errorType), 40)))
}

// bounded ends answers that are too long.
type bounded struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(request)
	if err == nil {
		response.Body = &limited{ReadCloser: response.Body, left: mostAnswer}
	}
	return response, err
}

var errTooLong = fmt.Errorf("the answer has more than %d MiB", mostAnswer>>20)

type limited struct {
	io.ReadCloser
	left int
}

// Read implements io.Reader.
func (l *limited) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errTooLong
	}
	n, err := l.ReadCloser.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}
