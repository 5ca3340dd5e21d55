package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
)

// bindKubeconfigFlags adds the flags by which kubectl finds a cluster and says who asks, by the names
// that kubectl has for them. kubectl also has --cache-dir, --match-server-version and --kuberc:
// nothing is cached here, no version has to match, and there are no preferences.
func bindKubeconfigFlags(flags *pflag.FlagSet, rules *clientcmd.ClientConfigLoadingRules, overrides *clientcmd.ConfigOverrides) {
	flags.StringVar(&rules.ExplicitPath, clientcmd.RecommendedConfigPathFlag, "", "the kubeconfig to use")
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ClusterOverrideFlags.APIServer.ShortName = "s"
	clientcmd.BindOverrideFlags(overrides, flags, names)
	flags.Var(&userExtra{overrides}, "as-user-extra", "KEY=VALUE, what else is said of the user to impersonate; can be repeated")
}

// namespaceOf is the namespace that the user means, and whether a flag has named it.
func namespaceOf(config clientcmd.ClientConfig) (namespace string, named bool, err error) {
	namespace, named, err = config.Namespace()
	if err != nil {
		return "", false, kubeconfigError(config, err)
	}
	return namespace, named, nil
}

// kubeconfigError says what to do about a kubeconfig by which no cluster is found.
func kubeconfigError(config clientcmd.ClientConfig, err error) error {
	if clientcmd.IsEmptyConfig(err) {
		return errors.New("no cluster is known: name a kubeconfig by --kubeconfig or the variable KUBECONFIG, as for kubectl")
	}
	raw, unread := config.RawConfig()
	if contexts := slices.Sorted(maps.Keys(raw.Contexts)); unread == nil && clientcmd.IsContextNotFound(err) {
		const most = 10
		return fmt.Errorf("the kubeconfig has no context of the name that --context or its current-context says: it has %s: %w", strings.Join(contexts[:min(len(contexts), most)], ", "), err)
	}
	return fmt.Errorf("read the kubeconfig: %w", err)
}

// userExtra is a flag that client-go knows of kubeconfigs only.
type userExtra struct{ overrides *clientcmd.ConfigOverrides }

// Set implements pflag.Value.
func (u *userExtra) Set(text string) error {
	key, value, found := strings.Cut(text, "=")
	if !found || key == "" {
		return fmt.Errorf("%q is not KEY=VALUE", text)
	}
	if u.overrides.AuthInfo.ImpersonateUserExtra == nil {
		u.overrides.AuthInfo.ImpersonateUserExtra = map[string][]string{}
	}
	u.overrides.AuthInfo.ImpersonateUserExtra[key] = append(u.overrides.AuthInfo.ImpersonateUserExtra[key], value)
	return nil
}

// String implements pflag.Value: there is no default.
func (*userExtra) String() string { return "" }

// Type implements pflag.Value.
func (*userExtra) Type() string { return "stringArray" }
