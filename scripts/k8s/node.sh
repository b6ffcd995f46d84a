# node.sh is sourced by start.sh: the files of the node "localhost", which is containerd and kubelet in mount and pid namespaces of
# their own, in the network namespace of the cluster.
# shellcheck shell=bash disable=SC2154 # lib.sh sets the variables

write_node_files() {
	mkdir -p "$node/cni/net.d" "$node/logs" "$node/sysctl"
	: >"$node/resolv.conf"
	cat >"$node/containerd.toml" <<END
version = 2
root = "$node/containerd"
state = "$node/containerd-state"
oom_score = 0
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
  address = "$node/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  stream_server_address = "127.0.0.1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$cni"
    conf_dir = "$node/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
END
	cat >"$node/cni/net.d/10-test.conflist" <<END
{"cniVersion":"0.4.0","name":"k8stest","plugins":[
 {"type":"bridge","bridge":"cnik8s0","isGateway":true,"ipMasq":false,"hairpinMode":true,
  "ipam":{"type":"host-local","dataDir":"$node/cni/ipam","ranges":[[{"subnet":"$pod_net"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true}}]}
END
	cat >"$node/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: $kubelet
healthzBindAddress: 127.0.0.1
healthzPort: $kubelet_health
containerRuntimeEndpoint: unix://$node/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: $keys/ca.crt}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup
failCgroupV1: false
failSwapOn: false
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
podLogsDir: $node/podlogs
evictionHard: {memory.available: "0%", nodefs.available: "0%", imagefs.available: "0%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
maxPods: 200
registryPullQPS: 0
resolvConf: $node/resolv.conf
clusterDomain: cluster.local
clusterDNS: [$service_dns]
nodeStatusUpdateFrequency: 5s
nodeLeaseDurationSeconds: 20
volumePluginDir: $node/volplugins
END
	cat >"$node/kubelet.sh" <<END
echo \$\$ >"$node/kubelet.pid"
exec "$bin/kubelet" --config="$node/kubelet.yaml" --kubeconfig="$run/node.kubeconfig" --hostname-override=localhost --node-ip=$node_ip \\
	--root-dir="$node/kubelet" --cert-dir="$node/certs" >>"$logs/kubelet.log" 2>&1
END
	cat >"$node/init.sh" <<END
# pid 1 of the pid namespace of the node: when it ends, all processes of the node end
mount --make-rshared /
# containerd, runc, CNI and kubelet write to these directories whatever their configuration says
for directory in /run /var/lib /var/log; do mount -t tmpfs -o mode=755 tmpfs \$directory; done
mkdir -p /run/netns /run/containerd /var/lib/cni /var/lib/kubelet
# kubelet sets these parameters of the host's kernel: it finds plain files in their place
for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	file="$node/sysctl/\$(echo \$name | tr / .)"
	cat /proc/sys/\$name >"\$file" && mount --bind "\$file" /proc/sys/\$name
done
containerd --config "$node/containerd.toml" >>"$logs/containerd.log" 2>&1 &
for _ in \$(seq 200); do
	ctr -a "$node/containerd.sock" version >/dev/null 2>&1 && break
	sleep 0.1
done
for image in "$images"/*.tar; do ctr -a "$node/containerd.sock" -n k8s.io images import "\$image" >>"$logs/import.log" 2>&1; done
bash "$node/kubelet.sh" &
while :; do # reap
	wait
	sleep 1
done
END
	local controller
	for controller in /sys/fs/cgroup/*/cgroup.procs; do
		if [ -f "$controller" ]; then mkdir -p "$(dirname "$controller")/$cgroup"; fi
	done
	if [ -f /sys/fs/cgroup/cgroup.controllers ]; then mkdir -p "/sys/fs/cgroup/$cgroup"; fi
}
