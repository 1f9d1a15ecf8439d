package main

import (
	"context"

	"github.com/spf13/cobra"

	"skiff/internal/config"
	"skiff/internal/system"
)

func serverCommand() *cobra.Command {
	c := config.DefaultServer()
	return bind(&cobra.Command{
		Use:   "server [flags]",
		Short: "Run a cluster: control plane and node in one process",
		Long: "Run a cluster in one process: API server, etcd, controllers, scheduler and, unless --no-node is given, a node on this host.\n\n" +
			"The admin kubeconfig is written to admin.kubeconfig in --data-dir. Several servers, best three or five, are one cluster:\n" +
			"start the first with --cluster-init and the others with --join.",
		Example: lines("skiff server --data-dir /var/lib/skiff", "skiff server --join https://10.0.0.1:6443 --join-token TOKEN",
			"skiff server --no-node --etcd-servers https://10.0.0.5:2379"),
	}, &c, func(ctx context.Context, _ []string) error { return system.RunServer(ctx, c) })
}

func apiServerCommand() *cobra.Command {
	c := config.DefaultAPIServer()
	return bind(&cobra.Command{
		Use:   "apiserver [flags]",
		Short: "Run the API server without controllers, scheduler and node",
		Long: "Run the API server without controllers, scheduler and node. Flags have the names and meanings of kube-apiserver's where it has them.\n\n" +
			"The admin kubeconfig is written to admin.kubeconfig in --data-dir.",
	}, &c, func(ctx context.Context, _ []string) error { return system.RunAPIServer(ctx, c) })
}

func agentCommand() *cobra.Command {
	c := config.DefaultAgent()
	return bind(&cobra.Command{
		Use:     "agent [flags]",
		Short:   "Join this host to a cluster as a node",
		Long:    "Join this host to a cluster as a node, with a token of 'skiff token create', and run the node.",
		Example: lines("skiff agent --server https://10.0.0.1:6443 --token TOKEN"),
	}, &c, func(ctx context.Context, _ []string) error { return system.RunAgent(ctx, c) })
}

func controllerManagerCommand() *cobra.Command {
	c := config.DefaultControllerManager()
	return bind(&cobra.Command{
		Use:   "controller-manager [flags]",
		Short: "Run the controllers alone",
		Long:  "Run the controllers alone, against any Kubernetes API server. Flags have the names and meanings of kube-controller-manager's.",
	}, &c, func(ctx context.Context, _ []string) error { return system.RunControllerManager(ctx, c) })
}

func schedulerCommand() *cobra.Command {
	c := config.DefaultScheduler()
	return bind(&cobra.Command{
		Use:   "scheduler [flags]",
		Short: "Run the scheduler alone",
		Long:  "Run the scheduler alone, against any Kubernetes API server. Flags have the names and meanings of kube-scheduler's.",
	}, &c, func(ctx context.Context, _ []string) error { return system.RunScheduler(ctx, c) })
}

func proxyCommand() *cobra.Command {
	c := config.DefaultProxy()
	return bind(&cobra.Command{
		Use:   "proxy [flags]",
		Short: "Run the Service proxy alone",
		Long:  "Run the Service proxy alone, on a node of any Kubernetes cluster. Flags have the names and meanings of kube-proxy's.",
	}, &c, func(ctx context.Context, _ []string) error { return system.RunProxy(ctx, c) })
}

func kubeletCommand() *cobra.Command {
	c := config.DefaultKubelet()
	return bind(&cobra.Command{
		Use:   "kubelet [flags]",
		Short: "Run a node alone",
		Long:  "Run this host as a node of any Kubernetes cluster. Flags have the names and meanings of kubelet's.",
	}, &c, func(ctx context.Context, _ []string) error { return system.RunKubelet(ctx, c) })
}

func hollowNodeCommand() *cobra.Command {
	c := config.DefaultHollow()
	return bind(&cobra.Command{
		Use:   "hollow [flags]",
		Short: "Run hollow nodes, which report pods as running without containers",
		Long:  "Run hollow nodes: they register, renew their leases and report pods as running, without running containers.",
	}, &c, func(ctx context.Context, _ []string) error { return system.RunHollow(ctx, c) })
}
