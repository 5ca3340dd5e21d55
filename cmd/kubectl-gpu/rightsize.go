package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/kubectl/inventory"
	"github.com/mica-gpu/mica/pkg/kubectl/rightsize"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/slice"
)

const (
	// mostPrometheusAnswer is in bytes, of one query.
	mostPrometheusAnswer = 8 << 20
	prometheusTimeout    = time.Minute
)

// sizing is the options of rightsize.
type sizing struct {
	output, driver   string
	prometheus, over string
	reserve          int
}

const rightsizeExample = `  kubectl -n monitoring port-forward service/prometheus 9090 &
  kubectl gpu rightsize deployment/llm --prometheus http://localhost:9090
  kubectl gpu rightsize statefulset/embed --prometheus http://localhost:9090 --over 30d --reserve 20`

const rightsizeLong = `Compare what a workload has used of its devices with the shapes that the nodes offer.

It asks Prometheus for the series of Mica's plugin: peak memory and utilization of its pods, also of those
that are gone. A shape fits if it has the peak and the reserve in memory, and would be busy for at most 90 %
of the time, by the 95th percentile, even if the work takes all of the compute that it has now.

Exit codes: 0 printed, 1 a smaller shape would do, 2 there is no answer.`

func newRightsizeCommand(config clientcmd.ClientConfig, connect func(clientcmd.ClientConfig) (client.Reader, error)) *cobra.Command {
	var s sizing
	command := &cobra.Command{
		Use:     "rightsize KIND/NAME",
		Short:   "Say which shape of device would do for a workload, by what it has used",
		Long:    rightsizeLong,
		Example: rightsizeExample,
		RunE: func(command *cobra.Command, args []string) error {
			return s.run(command, config, connect, args)
		},
	}
	flags := command.Flags()
	flags.StringVarP(&s.output, "output", "o", string(terminal.Tabular), "how to print: table, json or yaml")
	flags.StringVar(&s.prometheus, "prometheus", "", "the URL of Prometheus, as it is reached from here; required")
	flags.StringVar(&s.over, "over", "7d", "how much of the past counts, from 10m to 90d")
	flags.IntVar(&s.reserve, "reserve", 10, "how much memory is wanted besides the peak, in percent of it")
	flags.StringVar(&s.driver, "driver-name", slice.DefaultDriver, "the name under which the driver publishes devices")
	return command
}

func (s *sizing) run(command *cobra.Command, config clientcmd.ClientConfig, connect func(clientcmd.ClientConfig) (client.Reader, error), args []string) error {
	format := terminal.Format(s.output)
	if err := format.Check(terminal.Tabular, terminal.JSON, terminal.YAML); err != nil {
		return err
	}
	over, err := s.check()
	if err != nil {
		return err
	}
	namespace, _, err := namespaceOf(config)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		return errors.New("rightsize wants one workload, as deployment/NAME, and was given none")
	}
	target, err := workload.ParseRef(namespace, strings.Join(args, "/"))
	if err != nil {
		return err
	}
	reader, err := connect(config)
	if err != nil {
		return err
	}
	advice, err := s.advise(command.Context(), reader, target, over)
	if err != nil {
		return err
	}
	return s.print(command, format, advice)
}

// check reads what is no more than a flag.
func (s *sizing) check() (time.Duration, error) {
	u, err := url.Parse(s.prometheus)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return 0, errors.New("--prometheus is to be the URL of Prometheus as it is reached from here, such as http://localhost:9090 with a kubectl port-forward")
	}
	if s.reserve < 0 || s.reserve > 1000 {
		return 0, fmt.Errorf("--reserve is %d, and has to be from 0 to 1000 percent", s.reserve)
	}
	over, err := rightsize.ReadOver(s.over)
	if err != nil {
		return 0, fmt.Errorf("--over: %w", err)
	}
	return over, nil
}

func (s *sizing) advise(ctx context.Context, reader client.Reader, target workload.Ref, over time.Duration) (rightsize.Advice, error) {
	if _, err := readBuiltIn(ctx, reader, target); err != nil {
		return rightsize.Advice{}, err
	}
	offer, err := s.offer(ctx, reader)
	if err != nil {
		return rightsize.Advice{}, err
	}
	uses, err := s.uses(ctx, target, over)
	if err != nil {
		return rightsize.Advice{}, err
	}
	return rightsize.Of(rightsize.Question{Workload: target.String(), Uses: uses, Offer: offer, Reserve: float64(s.reserve) / 100})
}

// offer is an error where there is nothing to compare with.
func (s *sizing) offer(ctx context.Context, reader client.Reader) (rightsize.Offer, error) {
	var seen inventory.Seen
	if err := (fleetReader{reader: reader, driver: s.driver}).readSlices(ctx, &seen); err != nil {
		return rightsize.Offer{}, err
	}
	if seen.SlicesHidden {
		return rightsize.Offer{}, fmt.Errorf("you may not list ResourceSlices, so there are no shapes to compare with: %s", askFor)
	}
	offer := rightsize.OfferOf(seen.Slices)
	if offer.Empty() {
		return rightsize.Offer{}, fmt.Errorf("no node offers an entire GPU or a partition of driver %s: see that its plugin runs on the nodes with GPUs", s.driver)
	}
	return offer, nil
}

// uses asks Prometheus.
func (s *sizing) uses(ctx context.Context, target workload.Ref, over time.Duration) ([]rightsize.Use, error) {
	asked, err := api.NewClient(api.Config{Address: s.prometheus, RoundTripper: shortAnswers{http.DefaultTransport}})
	if err != nil {
		return nil, fmt.Errorf("ask Prometheus at %s: %w", s.prometheus, err)
	}
	ctx, cancel := context.WithTimeout(ctx, prometheusTimeout)
	defer cancel()
	prometheus := promv1.NewAPI(asked)
	var answers rightsize.Answers
	queries := rightsize.QueriesOf(target, over)
	for _, one := range []struct {
		query string
		into  *model.Vector
	}{{queries.Peak, &answers.Peak}, {queries.Total, &answers.Total}, {queries.Busy, &answers.Busy}} {
		value, _, err := prometheus.Query(ctx, one.query, time.Now())
		if err != nil {
			return nil, fmt.Errorf("ask Prometheus at %s for the devices of %s: %s: see that it is reached from here, and try a shorter --over", s.prometheus, target, excerpt.Of(err.Error(), 300))
		}
		vector, is := value.(model.Vector)
		if !is {
			return nil, fmt.Errorf("the server at %s answers with a %s, not as Prometheus does: see that the URL is that of its HTTP API", s.prometheus, value.Type())
		}
		*one.into = vector
	}
	if len(answers.Peak) == 0 {
		return nil, fmt.Errorf("no memory of devices of the pods of %s is known to Prometheus in the last %s: see that it scrapes Mica's plugins (mica_claim_device_info, mica_device_memory_used_bytes), that pods ran in this time, and -n",
			target, s.over)
	}
	return answers.Uses()
}

// shortAnswers ends answers that are too long: they then cannot be read.
type shortAnswers struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (s shortAnswers) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := s.RoundTripper.RoundTrip(request)
	if err == nil {
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(response.Body, mostPrometheusAnswer), response.Body}
	}
	return response, err
}

func (s *sizing) print(command *cobra.Command, format terminal.Format, advice rightsize.Advice) error {
	out := command.OutOrStdout()
	if format != terminal.Tabular {
		if err := format.Encode(out, advice); err != nil {
			return err
		}
	} else if err := rightsize.Write(out, terminal.Of(out, os.LookupEnv), advice, s.over); err != nil {
		return err
	}
	if smaller := advice.Smaller(); smaller != nil {
		return no(fmt.Sprintf("a smaller shape would do for %s: %s", advice.Workload, smaller.Name()))
	}
	return nil
}
