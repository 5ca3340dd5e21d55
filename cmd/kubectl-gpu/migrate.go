package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/kubectl/migrate"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/slice"
)

// migrating is the options of migrate.
type migrating struct {
	migrate.Options
	files     []string
	recursive bool
	output    string
	selector  string
	all       bool
	check     bool
	driver    string
}

const migrateExample = `  kubectl gpu migrate -f manifests/ > migrated.yaml
  helm template llm ./chart | kubectl gpu migrate -f - -o table
  kubectl gpu migrate -f device-plugin-config.yaml -f manifests/ > migrated.yaml
  kubectl gpu migrate -n research > migrated.yaml
  kubectl gpu migrate --check`

const migrateLong = `Rewrite manifests for NVIDIA's device plugin as claims for Mica, and say what cannot move and why.

It reads Deployments, StatefulSets, DaemonSets, ReplicaSets, Jobs, CronJobs and Pods with limits of
nvidia.com/gpu, nvidia.com/gpu.shared or nvidia.com/mig-*, configs of the device plugin, the GPU
Operator's ClusterPolicy, ResourceQuotas, claims of NVIDIA's DRA driver, and ScaledObjects by DCGM's
series. With -f it reads files, else the namespace. All manifests are printed on standard
output, those that need no change as they are; the report is on standard error. Nothing in the cluster
is changed.

With --check it looks at the cluster, and prints what to do, node by node.

Exit codes: 0 everything has moved, 1 something cannot move, or with --check, a node has still to
move, 2 the input or the command line is wrong, or nothing could be read.`

// outputs of migrate.
const (
	outputManifests = "yaml"
	outputReport    = "table"
	outputJSON      = "json"
)

func newMigrateCommand(config clientcmd.ClientConfig, connect func(clientcmd.ClientConfig) (client.Reader, error)) *cobra.Command {
	var m migrating
	command := &cobra.Command{
		Use:     "migrate",
		Short:   "Rewrite manifests for NVIDIA's device plugin as claims for Mica, and say what cannot move",
		Long:    migrateLong,
		Example: migrateExample,
		Args:    noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			return m.run(command, config, connect)
		},
	}
	flags := command.Flags()
	flags.StringArrayVarP(&m.files, "filename", "f", nil, "a file or directory with manifests, or - for standard input; can be repeated")
	flags.BoolVarP(&m.recursive, "recursive", "R", false, "read the directories in a directory, too")
	flags.StringVarP(&m.output, "output", "o", outputManifests, "how to print: yaml, the manifests with the report on standard error; table or json, the report alone")
	flags.StringVarP(&m.selector, "selector", "l", "", "without -f: workloads with these labels only; with --check: nodes")
	flags.BoolVarP(&m.all, "all-namespaces", "A", false, "without -f: the workloads of all namespaces")
	flags.StringVar(&m.Config, "config", "", "the device plugin's config by which resources are read, if a ConfigMap has several: the key in the ConfigMap")
	flags.StringVar(&m.Profile, "mig-profile", "", "the MIG profile that nvidia.com/gpu stands for, if the device plugin has migStrategy single, such as 1g.10gb")
	flags.StringVar(&m.Scaler, "scaler-address", "mica-controller-keda.mica.svc:9443", "host:port of Mica's controller, for KEDA")
	flags.BoolVar(&m.check, "check", false, "look at the cluster, and print what to do, node by node")
	flags.StringVar(&m.driver, "driver-name", slice.DefaultDriver, "the name under which Mica's driver publishes devices")
	return command
}

func (m *migrating) run(command *cobra.Command, config clientcmd.ClientConfig, connect func(clientcmd.ClientConfig) (client.Reader, error)) error {
	if err := m.validate(); err != nil {
		return err
	}
	if m.check {
		return m.runCheck(command, config, connect)
	}
	sources, err := m.sources(command, config, connect)
	if err != nil {
		return err
	}
	result, err := migrate.Run(sources, m.Options)
	if err != nil {
		return err
	}
	if err := m.print(command, result); err != nil {
		return err
	}
	if m.Live && len(result.Manifests) > 0 {
		command.PrintErrln("note: kubectl apply leaves limits in objects that it has not made: create the ResourceClaimTemplates, then use kubectl replace for what runs")
	}
	if result.Report.Blocked > 0 {
		return no(fmt.Sprintf("%d parts of these manifests cannot move: the report says which, and what to do", result.Report.Blocked))
	}
	return nil
}

func (m *migrating) validate() error {
	switch {
	case m.check && (len(m.files) > 0 || m.all):
		return errors.New("--check looks at the nodes of the cluster: leave -f and -A out")
	case len(m.files) > 0 && (m.selector != "" || m.all):
		return errors.New("-l and -A choose objects of the cluster: leave them out with -f")
	case m.check && m.output == outputManifests:
		m.output = outputReport
	}
	if err := migrate.CheckProfile(m.Profile); err != nil {
		return fmt.Errorf("--mig-profile: %w", err)
	}
	return terminal.Format(m.output).Check(outputManifests, outputReport, outputJSON)
}

func (m *migrating) print(command *cobra.Command, result migrate.Result) error {
	out := command.OutOrStdout()
	if m.output == outputJSON {
		return terminal.JSON.Encode(out, result.Report)
	}
	if m.output == outputManifests {
		if _, err := out.Write(result.Manifests); err != nil {
			return fmt.Errorf("write the manifests: %w", err)
		}
		out = command.ErrOrStderr()
	}
	return result.Report.Write(out, terminal.Of(out, os.LookupEnv))
}

func (m *migrating) sources(command *cobra.Command, config clientcmd.ClientConfig, connect func(clientcmd.ClientConfig) (client.Reader, error)) ([]migrate.Source, error) {
	if len(m.files) == 0 {
		m.Live = true
		return m.live(command, config, connect)
	}
	var sources []migrate.Source
	for _, name := range m.files {
		of, err := m.read(name, command.InOrStdin())
		if err != nil {
			return nil, err
		}
		sources = append(sources, of...)
	}
	return sources, nil
}

// read reads a file, a directory's files, or the standard input.
func (m *migrating) read(name string, in io.Reader) ([]migrate.Source, error) {
	if name == "-" {
		return readSource("standard input", in)
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("read the manifests: %w", err)
	}
	if !info.IsDir() {
		return readManifests(name)
	}
	var sources []migrate.Source
	err = filepath.WalkDir(name, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != name && !m.recursive:
			return filepath.SkipDir
		case entry.IsDir() || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)):
			return nil
		}
		of, err := readManifests(path)
		sources = append(sources, of...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the manifests in %s: %w", name, err)
	}
	return sources, nil
}

func readManifests(name string) ([]migrate.Source, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read the manifests: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	return readSource(name, file)
}

// readSource reads a byte more than may be migrated, so that more is seen.
func readSource(name string, in io.Reader) ([]migrate.Source, error) {
	text, err := io.ReadAll(io.LimitReader(in, migrate.MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return []migrate.Source{{Name: name, Text: text}}, nil
}
