// Command pretend-gpus is a kubelet device plugin that offers GPUs which are not there, so that a test bed without
// GPUs runs the kubelet's real admission, allocation and health paths.
//
// It owns one socket in the kubelet's device-plugin folder. A container that is given devices gets their ids in
// NVIDIA_VISIBLE_DEVICES and STOKER_SIMULATED_GPUS=1. SIGUSR1 turns the last device unhealthy and, sent again, healthy.
// It never touches a real GPU. Called by tools/testbed for every node.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	socketName      = "pretend-gpus.sock"
	registerTimeout = 5 * time.Second
	lookEvery       = 250 * time.Millisecond
)

func main() {
	count := flag.Int("count", 4, "how many GPUs to offer")
	node := flag.String("node", "node", "the node's name, part of every GPU's id")
	resource := flag.String("resource", "nvidia.com/gpu", "the extended resource to offer them as")
	folder := flag.String("folder", strings.TrimSuffix(plugin.DevicePluginPath, "/"), "the kubelet's device-plugin folder")
	flag.Parse()

	gpus := newGPUs(*node, *count)
	toggles := make(chan os.Signal, 1)
	signal.Notify(toggles, syscall.SIGUSR1)
	go func() {
		for range toggles {
			log.Printf("the last GPU is now %s", gpus.toggleLast())
		}
	}()
	for {
		if err := offer(gpus, *folder, *resource); err != nil {
			log.Printf("not registered: %v", err)
		}
		time.Sleep(lookEvery) // the kubelet is not up yet, or it restarted and emptied the folder
	}
}

// offer serves the GPUs and registers them, and returns when it must register again: it restarted (a new
// kubelet.sock) or took our socket away.
func offer(gpus *gpus, folder, resource string) error {
	kubelet, own := filepath.Join(folder, filepath.Base(plugin.KubeletSocket)), filepath.Join(folder, socketName)
	before, err := os.Stat(kubelet)
	if err != nil {
		return err
	}
	if err := os.Remove(own); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", own)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	plugin.RegisterDevicePluginServer(server, gpus)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	if err := register(kubelet, resource); err != nil {
		return err
	}
	log.Printf("registered %d × %s", len(gpus.list()), resource)
	for {
		time.Sleep(lookEvery)
		now, err := os.Stat(kubelet)
		if err != nil || !os.SameFile(before, now) || !before.ModTime().Equal(now.ModTime()) {
			return nil
		}
		if _, err := os.Stat(own); err != nil {
			return nil
		}
	}
}

func register(kubelet, resource string) error {
	connection, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), registerTimeout)
	defer cancel()
	_, err = plugin.NewRegistrationClient(connection).Register(ctx, &plugin.RegisterRequest{
		Version: plugin.Version, Endpoint: socketName, ResourceName: resource, Options: &plugin.DevicePluginOptions{},
	})
	return err
}

// gpus are the pretend devices and the service the kubelet calls. changed is closed and replaced at every change.
type gpus struct {
	plugin.UnimplementedDevicePluginServer
	mutex    sync.Mutex
	ids      []string
	lastIsOK bool
	changed  chan struct{}
}

func newGPUs(node string, count int) *gpus {
	ids := make([]string, count)
	for i := range ids {
		ids[i] = fmt.Sprintf("GPU-%s-%d", node, i)
	}
	return &gpus{ids: ids, lastIsOK: true, changed: make(chan struct{})}
}

func (g *gpus) toggleLast() string {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.lastIsOK = !g.lastIsOK
	close(g.changed)
	g.changed = make(chan struct{})
	if g.lastIsOK {
		return plugin.Healthy
	}
	return plugin.Unhealthy
}

func (g *gpus) list() []*plugin.Device {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	devices := make([]*plugin.Device, len(g.ids))
	for i, id := range g.ids {
		health := plugin.Healthy
		if i == len(g.ids)-1 && !g.lastIsOK {
			health = plugin.Unhealthy
		}
		devices[i] = &plugin.Device{ID: id, Health: health}
	}
	return devices
}

func (g *gpus) nextChange() <-chan struct{} {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	return g.changed
}

func (g *gpus) GetDevicePluginOptions(context.Context, *plugin.Empty) (*plugin.DevicePluginOptions, error) {
	return &plugin.DevicePluginOptions{}, nil
}

func (g *gpus) ListAndWatch(_ *plugin.Empty, stream grpc.ServerStreamingServer[plugin.ListAndWatchResponse]) error {
	for {
		next := g.nextChange() // taken before the list: a change in between is sent again, never lost
		if err := stream.Send(&plugin.ListAndWatchResponse{Devices: g.list()}); err != nil {
			return err
		}
		select {
		case <-next:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (g *gpus) Allocate(_ context.Context, request *plugin.AllocateRequest) (*plugin.AllocateResponse, error) {
	response := &plugin.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		response.ContainerResponses = append(response.ContainerResponses, &plugin.ContainerAllocateResponse{
			Envs: map[string]string{
				"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ","),
				"STOKER_SIMULATED_GPUS":  "1",
			},
		})
	}
	return response, nil
}
