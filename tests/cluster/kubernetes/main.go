// Command kubernetes holds the Kubernetes programs that the tests start, in one
// binary: one link step instead of five, and one file to keep in the cache.
//
// The program is chosen by the first argument, or by the name of a link to the binary.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// Built lazily: each constructor registers flags and feature gates of its own.
var programs = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kubectl":                 cmd.NewDefaultKubectlCommand,
}

// choose returns the program's name and leaves its own arguments in os.Args.
func choose() string {
	if name := filepath.Base(os.Args[0]); programs[name] != nil {
		return name
	}
	if len(os.Args) > 1 && programs[os.Args[1]] != nil {
		os.Args = os.Args[1:]
		return os.Args[0]
	}
	return ""
}

func main() {
	name := choose()
	switch name {
	case "":
		names := make([]string, 0, len(programs))
		for known := range programs {
			names = append(names, known)
		}
		slices.Sort(names)
		fmt.Fprintf(os.Stderr, "Name one of %s first.\n", strings.Join(names, ", "))
		os.Exit(2)
	case "kubectl":
		// kubectl writes its errors in a form of its own.
		if err := cli.RunNoErrOutput(programs[name]()); err != nil {
			util.CheckErr(err)
		}
	default:
		os.Exit(cli.Run(programs[name]()))
	}
}
